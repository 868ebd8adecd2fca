"""What one rank of `benchmarks/multi_gpu.py` does: checks first, then times. Every file has one job."""
