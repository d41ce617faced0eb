// RUN: sharding-opt %s --set-target=target=cpu:x86-64-v3 | FileCheck %s
// RUN: sharding-opt %s --set-target=target=cpu:x86-64-v3 --set-target | FileCheck %s --check-prefix=DEFAULT
// RUN: sharding-opt %s --set-target=target=cpu:x86-64-v4 --schedule | FileCheck %s --check-prefix=WIDE
// RUN: sharding-opt %s --set-target=target=cpu:haswell --schedule | FileCheck %s --check-prefix=NARROW
// RUN: sharding-opt %s --set-target=target=cpu:x86-64 --schedule | FileCheck %s --check-prefix=NONE

// The schedule packs weights as the function's target reads them. A processor without
// x * y + z in one instruction has no generated products.
// CHECK: func.func @main({{.*}} attributes {rt.target = "cpu:x86-64-v3"}
// DEFAULT-NOT: rt.target
// WIDE: rt.target = "cpu:x86-64-v4"
// WIDE: rt.prepare {{.*}}panel = 32
// NARROW: rt.target = "cpu:haswell"
// NARROW: rt.prepare {{.*}}panel = 16
// NONE: rt.target = "cpu:x86-64"
// NONE-NOT: rt.prepare
func.func @main(%x: tensor<4x8xf32> {nn.input = "x"}, %w: tensor<64x8xf32> {nn.parameter = "w"}) -> (tensor<4x64xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<64x8xf32>) -> tensor<4x64xf32>
  return %0 : tensor<4x64xf32>
}
