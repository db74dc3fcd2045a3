// Stands in for glog: a check that fails is an exception here, where a server would end.
#pragma once

#include <algorithm>
#include <sstream>
#include <stdexcept>

namespace stand_in {

class Failure {
 public:
  explicit Failure(const char* condition) { text_ << "Check failed: " << condition << ' '; }
  ~Failure() noexcept(false) { throw std::logic_error(text_.str()); }

  template <typename T>
  Failure& operator<<(const T& words) {
    text_ << words;
    return *this;
  }

 private:
  std::ostringstream text_;
};

}  // namespace stand_in

#define CHECK(condition) \
  if (condition) {       \
  } else                 \
    stand_in::Failure(#condition)
#define CHECK_GT(one, other) CHECK((one) > (other))
#define CHECK_LE(one, other) CHECK((one) <= (other))
#define DCHECK(condition) CHECK(condition)
