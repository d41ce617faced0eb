// RUN: not sharding-opt %s --decompose-all-reduce=when=sometimes 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: not sharding-opt %s --combine-collectives 2>&1 | FileCheck %s --check-prefix=DEVICE

// OPTION: for the --when option: expected on, off or auto, got 'sometimes'
// DEVICE: error: mesh: unknown device 'h9000': expected one of h100, h200, a100, a800, cpu, or key=number
dist.mesh @mesh = <["tp"=2], device = "h9000">
func.func @main() attributes {dist.spmd = @mesh} {
  return
}
