// One float: the pack of a processor without a wider one.
#pragma once

#include "../../cuda/math/lanes.h"

namespace qpi {
inline namespace QPI_ISA {

QPI_FN bool all_lanes(bool mask) { return mask; }

}  // namespace QPI_ISA
}  // namespace qpi
