#pragma once

namespace fargpu::client {

// Lets the private tables (driver_abi) answer from the process's session. Call any number of times.
void InstallExportTableHost();

}  // namespace fargpu::client
