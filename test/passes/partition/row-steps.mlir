// RUN: sharding-opt %s --partition --verify-placement | FileCheck %s

// The network is slower than the links of a host, so a token crosses it once for a host, and goes on from there to
// the ranks of its experts. Choices go the same way, once.

#tokens = #dist.sharding<@mesh, [{"host", "ep"}, {}]>
#experts = #dist.sharding<@mesh, [{"host", "ep"}, {}, {}]>
!rows = tensor<8x4x64xf32, #nn.routed<2>>

dist.mesh @mesh = <["host"=2, "ep"=2], device = "h100 network_bandwidth=1e6">

// CHECK-LABEL: func.func @main
// CHECK: %[[I:.*]] = nn.cast %arg1 : (tensor<1x2xi64>) -> tensor<1x2xi32>
// CHECK-NEXT: %[[I_OUT:.*]] = nn.dispatch %[[I]], %arg1 : {{.*}} -> tensor<2x1x2xi32, #nn.routed<2, shared = 4>>
// CHECK-NEXT: %[[I_HOST:.*]] = dist.redistribute %[[I_OUT]] from [#dist.sharding<@mesh, [{}, {"host", "ep"}, {}]>]
// CHECK-SAME:   to [#dist.sharding<@mesh, [{"host"}, (2, 2{"ep"}), {}]>]
// CHECK-NEXT: %[[X_OUT:.*]] = nn.dispatch %arg0, %arg1
// CHECK-NEXT: %[[X_HOST:.*]] = dist.redistribute %[[X_OUT]] from
// CHECK-NEXT: %[[HOST:.*]] = dist.axis_index ["host"] chunk 2
// CHECK-NEXT: %[[I_IN:.*]] = nn.dispatch %[[I_HOST]], %[[I_HOST]] offset %[[HOST]] {nn.table_rows = 4 : i64}
// CHECK-NEXT: %[[I_EP:.*]] = dist.redistribute %[[I_IN]] from [#dist.sharding<@mesh, [{"host"}, (2, 2{"ep"}), {}]>]
// CHECK-SAME:   to [#dist.sharding<@mesh, [{"host", "ep"}, {}, {}]>]
// CHECK: %[[X_IN:.*]] = nn.dispatch %[[X_HOST]], %[[I_HOST]] offset
// CHECK-NEXT: %[[X_EP:.*]] = dist.redistribute %[[X_IN]] from
// CHECK: %[[R:.*]] = nn.dispatch %[[X_EP]], %[[I_EP]] offset %{{.*}} {nn.table_rows = 8 : i64}
// CHECK-NEXT: %[[S:.*]] = nn.silu %[[R]]
// CHECK: %[[Y_EP:.*]] = nn.combine %[[S]], %[[I_EP]] offset %{{.*}} {nn.table_rows = 8 : i64}
// CHECK-NEXT: %[[Y_IN:.*]] = dist.redistribute %[[Y_EP]] from
// CHECK: %[[Y_HOST:.*]] = nn.combine %[[Y_IN]], %[[I_HOST]] offset %{{.*}} {nn.table_rows = 4 : i64}
// CHECK-NEXT: %[[Y_OUT:.*]] = dist.redistribute %[[Y_HOST]] from
// CHECK-NEXT: %[[Y:.*]] = nn.combine %[[Y_OUT]], %arg1
// CHECK-NEXT: return %[[Y]]
func.func @main(%x: tensor<4x64xf32> {dist.sharding = #tokens}, %i: tensor<4x2xi64> {dist.sharding = #tokens})
    -> (tensor<4x64xf32> {dist.sharding = #tokens}) {
  %r = nn.dispatch %x, %i {dist.sharding = #experts} : (tensor<4x64xf32>, tensor<4x2xi64>) -> !rows
  %h = nn.silu %r {dist.sharding = #experts} : !rows
  %y = nn.combine %h, %i {dist.sharding = #tokens} : (!rows, tensor<4x2xi64>) -> tensor<4x64xf32>
  return %y : tensor<4x64xf32>
}
