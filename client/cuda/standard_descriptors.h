#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "common/fd.h"

namespace fargpu::client {

// While it lives, descriptors 0 to 2 are taken. A program may run without a standard stream; a
// socket of ours in its place would get what the program writes there.
class StandardDescriptorsTaken {
 public:
  StandardDescriptorsTaken() {
    while (true) {
      UniqueFd fd(open("/dev/null", O_RDWR | O_CLOEXEC));
      if (!fd.valid() || fd.get() > STDERR_FILENO) break;
      holders_.push_back(std::move(fd));
    }
  }

  // Whether the program runs without at least one of its standard streams.
  bool any() const { return !holders_.empty(); }

 private:
  std::vector<UniqueFd> holders_;
};

}  // namespace fargpu::client
