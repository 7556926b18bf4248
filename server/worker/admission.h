#pragma once

#include <cuda.h>

#include "absl/status/status.h"

namespace fargpu::server {

// The one place that every piece of work for the card passes before the driver gets it (DESIGN D9):
// here the node's compute arbiter will hold back a lease that has had its share.
class Admission {
 public:
  virtual ~Admission() = default;

  struct Work {
    int device = 0;  // of the lease
    CUstream stream = nullptr;
  };
  // Returns when the work may go to the card; an error is the call's result. Called in the order of
  // the program's calls by the dispatching thread, so whoever waits here holds the session up.
  virtual absl::Status Admit(const Work& work) = 0;
};

// Everybody goes at once.
class OpenAdmission final : public Admission {
 public:
  absl::Status Admit(const Work& work) override { return absl::OkStatus(); }
};

}  // namespace fargpu::server
