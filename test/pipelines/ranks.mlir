// RUN: not sharding-opt %s --parallelize="ranks=0" 2>&1 | FileCheck %s --check-prefix=ZERO
// RUN: not sharding-opt %s --parallelize="ranks=2 mesh=tp=4" 2>&1 | FileCheck %s --check-prefix=BOTH
// RUN: not sharding-opt %s --parallelize="ranks=2 objective=speed" 2>&1 | FileCheck %s --check-prefix=OBJECTIVE
// RUN: not sharding-opt %s --parallelize="ranks=2 data-parallel=none tensor-parallel=none" 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: sharding-opt %s --parallelize="ranks=7" | FileCheck %s

// ZERO: ranks: expected a number from 1 to 1048576, got '0'
// BOTH: ranks: expected a multiple of 4, the ranks of the axes that mesh states, got 2
// OBJECTIVE: objective: expected time, memory or time-then-memory, got 'speed'
// NONE: ranks: no axis is left to choose

// 7 ranks divide nothing: some axis pads.
// CHECK: dist.mesh @mesh = <["{{dp|tp}}"=7]
func.func @main(%x: tensor<2x8xf32> {nn.input = "x"}, %w: tensor<8x8xf32> {nn.parameter = "w"})
    -> (tensor<2x8xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
