#pragma once

namespace fargpu::softgpu {

// Can this CPU run code for target("avx512f,avx512bw,avx512vl,avx512dq")?
inline bool HasAvx512() {
  static const bool has =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  return has;
}

}  // namespace fargpu::softgpu
