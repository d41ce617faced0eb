// RUN: not sharding-opt %s --annotate-scatter-modes="mode=maybe" 2>&1 | FileCheck %s --check-prefix=MODE
// RUN: not sharding-opt %s --annotate-scatter-modes="axis=sp mode=on" 2>&1 | FileCheck %s --check-prefix=AXIS
// RUN: not sharding-opt %s --annotate-tensor-parallel="axis=sp" 2>&1 | FileCheck %s --check-prefix=TENSOR

// MODE: error: annotate-scatter-modes: mode 'maybe', expected on, off or auto
// AXIS: error: 'dist.mesh' op has no axis "sp" to scatter tokens over
// TENSOR: error: 'dist.mesh' op has no axis "sp" for tensor parallelism
dist.mesh @mesh = <["tp"=2]>
func.func @main(%x: tensor<4xf32> {nn.input = "x"}) -> (tensor<4xf32> {nn.output = "y"}) {
  %y = nn.relu %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
