// RUN: not sharding-opt %s --split-input-file --annotate-scatter-modes="mode=maybe" 2>&1 | FileCheck %s --check-prefix=MODE
// RUN: not sharding-opt %s --split-input-file --annotate-scatter-modes="axis=sp mode=on" 2>&1 | FileCheck %s --check-prefix=AXIS
// RUN: not sharding-opt %s --split-input-file --annotate-tensor-parallel="axis=sp" 2>&1 | FileCheck %s --check-prefix=TENSOR
// RUN: sharding-opt %s --split-input-file --annotate-tensor-parallel --annotate-scatter-modes=mode=on -verify-diagnostics -o /dev/null

// MODE: for the --mode option: expected on, off or auto, got 'maybe'
// AXIS: error: 'dist.mesh' op has no axis "sp" to scatter tokens over
// TENSOR: error: 'dist.mesh' op has no axis "sp" for tensor parallelism
dist.mesh @mesh = <["tp"=2]>
func.func @main(%x: tensor<4xf32> {nn.input = "x"}) -> (tensor<4xf32> {nn.output = "y"}) {
  %y = nn.relu %x : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// Sizes are divided by: none is 0.
dist.mesh @mesh = <["tp"=2]>
// expected-error@+1 {{value: expected at least one element, got 'tensor<0x4xf32>'}}
func.func @main(%x: tensor<0x4xf32> {nn.input = "x"}, %w: tensor<4x4xf32> {nn.parameter = "w"})
    -> (tensor<0x4xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<0x4xf32>, tensor<4x4xf32>) -> tensor<0x4xf32>
  return %0 : tensor<0x4xf32>
}
