// RUN: sharding-opt %s --recompute="mode=full" --verify-placement --verify-roundtrip | FileCheck %s --check-prefixes=CHECK,FULL
// RUN: sharding-opt %s --recompute="mode=full" --remarks=applied,declined -o /dev/null 2>&1 | FileCheck %s --check-prefix=APPLIED
// RUN: sharding-opt %s --recompute="mode=none" | FileCheck %s --check-prefixes=CHECK,NONE
// RUN: sharding-opt %s --recompute | FileCheck %s --check-prefixes=CHECK,NONE
// RUN: sharding-opt %s --recompute --remarks=applied,declined -o /dev/null 2>&1 | FileCheck %s --check-prefix=FREE
// RUN: sharding-opt %s --set-target="target=cpu:x86-64-v3" --recompute="memory-ceiling=50000" --remarks=applied,declined -o /dev/null 2>&1 | FileCheck %s --check-prefix=FITS
// RUN: sharding-opt %s --set-target="target=cpu:x86-64-v3" --recompute="memory-ceiling=34000 shard-saved=off" --remarks=applied,declined -o /dev/null 2>&1 | FileCheck %s --check-prefix=LESS
// RUN: sharding-opt %s --recompute="memory-ceiling=4096" --remarks=applied,declined -o /dev/null 2>&1 | FileCheck %s --check-prefix=APPLIED
// RUN: sharding-opt %s --recompute="mode=full" --schedule | FileCheck %s --check-prefix=RT
// RUN: not sharding-opt %s --recompute="mode=some" 2>&1 | FileCheck %s --check-prefix=UNKNOWN

// Four layers. The operand of a layer is kept; its activation is computed again behind the cotangent that
// comes from the layer behind, and behind the gradient of that layer's weight. The second product, whose result is kept, is not repeated. The backward
// pass begins with the last layer, which is left alone.

// APPLIED: remark: [recompute] applied: the backward pass computes 6 ops of 3 of 4 segments again (saved_bytes = 12.0 KiB, seconds = {{.*}}, ops = 6, segments = 4
// FREE: remark: [recompute] declined: the backward pass computes nothing again: there is no memory ceiling that asks for it (saved_bytes = 12.0 KiB
// FITS: remark: [recompute] declined: the backward pass computes nothing again: the program keeps to the memory ceiling (saved_bytes = 12.0 KiB, seconds = {{.*}}, memory_ceiling_bytes = 48.8 KiB)
// LESS: remark: [recompute] applied: the backward pass computes {{[0-9]+}} ops of {{[12]}} of 4 segments again
// UNKNOWN: expected none, full or auto, got 'some'

// CHECK-LABEL: func.func @main
// CHECK: %[[A0:.*]] = nn.exp
// CHECK: %[[X1:.*]] = nn.add %arg0
// CHECK: %[[A1:.*]] = nn.exp
// CHECK: %[[A2:.*]] = nn.exp
// CHECK: %[[A3:.*]] = nn.exp
// CHECK-NOT: nn.backward
// CHECK: nn.mul %{{.*}}, %[[A3]]
// FULL: %[[W3:.*]] = nn.weight_grad
// FULL: %[[W2:.*]] = nn.weight_grad
// FULL: %[[D1:.*]] = nn.linear %{{.*}}, %arg2 : (tensor<64x8xf32>
// FULL-NEXT: %[[G1:.*]] = dist.after %[[D1]], %[[W2]] : tensor<64x16xf32>, tensor<16x8xf32>
// FULL-NEXT: %[[L1:.*]] = dist.after %[[X1]], %[[G1]] : tensor<64x8xf32>, tensor<64x16xf32>
// FULL-NEXT: %[[H1:.*]] = nn.linear %[[L1]], %arg2 : (tensor<64x8xf32>
// FULL-NEXT: %[[B1:.*]] = nn.exp %[[H1]]
// FULL-NEXT: nn.mul %[[D1]], %[[B1]]
// FULL-NEXT: nn.weight_grad %{{.*}}, %[[X1]]
// FULL: dist.after %arg0
// NONE-NOT: dist.after
// NONE: nn.mul %{{.*}}, %[[A1]]
// NONE: nn.mul %{{.*}}, %[[A0]]

// The copy of the first layer runs behind the cotangent of its activation. The order takes no launch.
// RT: %[[AFTER:.*]] = dist.after %arg0, %[[LATE:.*]] : tensor<64x8xf32>, tensor<64x16xf32>
// RT-NEXT: rt.kernel %[[AFTER]]

dist.mesh @mesh = <["tp"=2], device = "h100">
func.func @main(%x0: tensor<64x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<64x8xf32>},
                %u0: tensor<16x8xf32> {nn.parameter = "u0", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
                %u1: tensor<16x8xf32> {nn.parameter = "u1", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
                %u2: tensor<16x8xf32> {nn.parameter = "u2", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
                %u3: tensor<16x8xf32> {nn.parameter = "u3", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>}, tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>}, tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>}, tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %h0 = nn.linear %x0, %u0 : (tensor<64x8xf32>, tensor<16x8xf32>) -> tensor<64x16xf32>
  %a0 = nn.exp %h0 : tensor<64x16xf32>
  %o0 = nn.linear %a0, %u0 {in_out} : (tensor<64x16xf32>, tensor<16x8xf32>) -> tensor<64x8xf32>
  %x1 = nn.add %x0, %o0 : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<64x8xf32>
  %h1 = nn.linear %x1, %u1 : (tensor<64x8xf32>, tensor<16x8xf32>) -> tensor<64x16xf32>
  %a1 = nn.exp %h1 : tensor<64x16xf32>
  %o1 = nn.linear %a1, %u1 {in_out} : (tensor<64x16xf32>, tensor<16x8xf32>) -> tensor<64x8xf32>
  %x2 = nn.add %x1, %o1 : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<64x8xf32>
  %h2 = nn.linear %x2, %u2 : (tensor<64x8xf32>, tensor<16x8xf32>) -> tensor<64x16xf32>
  %a2 = nn.exp %h2 : tensor<64x16xf32>
  %o2 = nn.linear %a2, %u2 {in_out} : (tensor<64x16xf32>, tensor<16x8xf32>) -> tensor<64x8xf32>
  %x3 = nn.add %x2, %o2 : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<64x8xf32>
  %h3 = nn.linear %x3, %u3 : (tensor<64x8xf32>, tensor<16x8xf32>) -> tensor<64x16xf32>
  %a3 = nn.exp %h3 : tensor<64x16xf32>
  %o3 = nn.linear %a3, %u3 {in_out} : (tensor<64x16xf32>, tensor<16x8xf32>) -> tensor<64x8xf32>
  %x4 = nn.add %x3, %o3 : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<64x8xf32>
  %g4 = nn.mul %x4, %x4 {nn.backward} : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<64x8xf32>
  %da3 = nn.linear %g4, %u3 {nn.backward} : (tensor<64x8xf32>, tensor<16x8xf32>) -> tensor<64x16xf32>
  %dh3 = nn.mul %da3, %a3 {nn.backward} : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %du3 = nn.weight_grad %dh3, %x3 {nn.backward} : (tensor<64x16xf32>, tensor<64x8xf32>) -> tensor<16x8xf32>
  %dx3 = nn.linear %dh3, %u3 {in_out, nn.backward} : (tensor<64x16xf32>, tensor<16x8xf32>) -> tensor<64x8xf32>
  %g3 = nn.add %g4, %dx3 {nn.backward} : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<64x8xf32>
  %da2 = nn.linear %g3, %u2 {nn.backward} : (tensor<64x8xf32>, tensor<16x8xf32>) -> tensor<64x16xf32>
  %dh2 = nn.mul %da2, %a2 {nn.backward} : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %du2 = nn.weight_grad %dh2, %x2 {nn.backward} : (tensor<64x16xf32>, tensor<64x8xf32>) -> tensor<16x8xf32>
  %dx2 = nn.linear %dh2, %u2 {in_out, nn.backward} : (tensor<64x16xf32>, tensor<16x8xf32>) -> tensor<64x8xf32>
  %g2 = nn.add %g3, %dx2 {nn.backward} : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<64x8xf32>
  %da1 = nn.linear %g2, %u1 {nn.backward} : (tensor<64x8xf32>, tensor<16x8xf32>) -> tensor<64x16xf32>
  %dh1 = nn.mul %da1, %a1 {nn.backward} : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %du1 = nn.weight_grad %dh1, %x1 {nn.backward} : (tensor<64x16xf32>, tensor<64x8xf32>) -> tensor<16x8xf32>
  %dx1 = nn.linear %dh1, %u1 {in_out, nn.backward} : (tensor<64x16xf32>, tensor<16x8xf32>) -> tensor<64x8xf32>
  %g1 = nn.add %g2, %dx1 {nn.backward} : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<64x8xf32>
  %da0 = nn.linear %g1, %u0 {nn.backward} : (tensor<64x8xf32>, tensor<16x8xf32>) -> tensor<64x16xf32>
  %dh0 = nn.mul %da0, %a0 {nn.backward} : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %du0 = nn.weight_grad %dh0, %x0 {nn.backward} : (tensor<64x16xf32>, tensor<64x8xf32>) -> tensor<16x8xf32>
  %dx0 = nn.linear %dh0, %u0 {in_out, nn.backward} : (tensor<64x16xf32>, tensor<16x8xf32>) -> tensor<64x8xf32>
  %g0 = nn.add %g1, %dx0 {nn.backward} : (tensor<64x8xf32>, tensor<64x8xf32>) -> tensor<64x8xf32>
  return %du0, %du1, %du2, %du3 : tensor<16x8xf32>, tensor<16x8xf32>, tensor<16x8xf32>, tensor<16x8xf32>
}
