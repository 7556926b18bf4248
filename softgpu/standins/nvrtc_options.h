#pragma once

#include <string>
#include <vector>

namespace fargpu::standins {

// Options for nvrtcCompileProgram that give PTX where the program's ask for machine code.
struct CompileOptions {
  std::vector<std::string> options;
  bool machine_code = false;  // what the program asked for
};

// sm_XY becomes compute_XY in every way in which the option can be written. Without a change if
// the program asks for LTO-IR: that is linked later, and how is asked then.
CompileOptions CompileForPtx(const std::vector<std::string>& options);

}  // namespace fargpu::standins
