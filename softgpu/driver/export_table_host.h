#pragma once

namespace fargpu::softgpu {

// Connects the private tables of protocol/driver_abi to the driver. Once, by cuInit or by the first
// cuGetExportTable.
void InstallExportTables();

}  // namespace fargpu::softgpu
