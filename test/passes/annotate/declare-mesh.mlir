// RUN: sharding-opt %s --declare-mesh="mesh=dp=2,tp=4 device=h100" | FileCheck %s
// RUN: sharding-opt %s --declare-mesh="mesh=dp=2,tp=4 device=h100" | sharding-opt --declare-mesh="mesh=dp=2,tp=4 device=h100" | FileCheck %s
// RUN: sharding-opt %s --declare-mesh="mesh=dp=2,tp=4" | sharding-opt --declare-mesh="device=a100 replaces-device" | FileCheck %s --check-prefix=DEVICE
// RUN: not sharding-opt %s --declare-mesh 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: sharding-opt %s --dump-pass-pipeline --pass-pipeline='builtin.module(declare-mesh{mesh=dp=2})' -o /dev/null 2>&1 | FileCheck %s --check-prefix=PRINTED
// RUN: not sharding-opt %s --declare-mesh="mesh=dp=0" 2>&1 | FileCheck %s --check-prefix=SIZE

// DEVICE: dist.mesh @mesh = <["dp"=2, "tp"=4], device = "a100">
// CHECK-COUNT-1: dist.mesh @mesh = <["dp"=2, "tp"=4], device = "h100">
// CHECK-NOT: dist.mesh
// NONE: error: no mesh: expected a 'mesh' option or a dist.mesh in the module
// SIZE: for the --mesh option: mesh: axis 'dp': expected a size of at least 1, got 0
// PRINTED: declare-mesh{device= mesh=dp=2 replaces-device=false roles= target=}
func.func @main(%x: tensor<3x4xf32> {nn.input = "x"}, %m: tensor<3xi1> {nn.input = "m"}, %t: tensor<5xf32> {nn.input = "t"},
                %w: tensor<4xf32> {nn.parameter = "w"}) -> (tensor<3x4xf32> {nn.output = "y"}) {
  %y = nn.add %x, %w : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  return %y : tensor<3x4xf32>
}
