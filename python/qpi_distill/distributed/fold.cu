// Records of all ranks to one, in the order of the ranks. Compiled by NVRTC when the first `Ranks` on a GPU is made.
//
// Defined by the caller, from the record's dtype:
//   WORDS        words of 8 bytes in a record
//   COUNT_WORDS  bits: which of them are integers; the others are float64, but
//   FLAG_WORD    the one that holds fault bits (low half) and the number of accumulate calls (high half)

// A block of at least WORDS threads: each adds up one word.
extern "C" __global__ void fold_records(const unsigned long long* records, int ranks, unsigned long long* record) {
  const int word = threadIdx.x;
  if (word >= WORDS) return;
  double sum = 0.0;
  unsigned long long count = 0;
  unsigned int faults = 0, calls = 0;
#pragma unroll 8  // independent loads
  for (int rank = 0; rank < ranks; ++rank) {
    const unsigned long long bits = records[rank * WORDS + word];
    sum += __longlong_as_double(static_cast<long long>(bits));
    count += bits;
    faults |= static_cast<unsigned int>(bits);
    calls += static_cast<unsigned int>(bits >> 32);
  }
  if (word == FLAG_WORD) {
    record[word] = static_cast<unsigned long long>(calls) << 32 | faults;
  } else if ((COUNT_WORDS >> word & 1u) != 0) {
    record[word] = count;
  } else {
    record[word] = static_cast<unsigned long long>(__double_as_longlong(sum));
  }
}

// One thread: factor over the sum of the weights; 0 where there is none.
extern "C" __global__ void normalise(const double* weights, int ranks, double factor, float* scale) {
  double total = 0.0;
  for (int rank = 0; rank < ranks; ++rank) total += weights[rank];
  *scale = total > 0.0 ? static_cast<float>(factor / total) : 0.0f;
}
