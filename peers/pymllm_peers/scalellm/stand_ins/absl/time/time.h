// Stands in for absl's times.
#pragma once

#include "absl/time/clock.h"

namespace absl {

inline int64_t ToUnixMicros(Time time) { return time.microseconds; }

}  // namespace absl
