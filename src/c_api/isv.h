// Checks on an ISV and its layout, shared by every call that takes one.
#pragma once

#include <qpi_distill.h>

#include "../../cuda/math/state.h"

namespace qpi {

// Is this an ISV that can be used? Names the member that is not.
qpi_status check_isv(const qpi_isv* isv);

IsvWords isv_words(const qpi_isv& isv);
FlightRing isv_flight(const qpi_isv& isv);
inline Workspace* isv_workspace(const qpi_isv& isv) { return static_cast<Workspace*>(isv.workspace); }

}  // namespace qpi
