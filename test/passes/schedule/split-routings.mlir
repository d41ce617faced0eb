// RUN: sharding-opt %s --split-input-file --split-routings=chunks=2 | FileCheck %s
// RUN: sharding-opt %s --split-input-file --split-routings=chunks=2 --compact-rows | FileCheck %s --check-prefix=ROWS
// RUN: sharding-opt %s --split-input-file --split-routings=chunks=2 --compact-rows --verify-placement -o /dev/null
// RUN: sharding-opt %s --split-input-file --split-routings | FileCheck %s --check-prefix=WHOLE

// Sequences stay on their rank, so they are cut where tokens move along the other dimension.

// CHECK-LABEL: func.func @moved
// CHECK: %[[X0:.+]] = nn.slice %arg0 starts [0, 0, 0] limits [2, 2, 4]
// CHECK-NEXT: %[[I0:.+]] = nn.slice %arg1 starts [0, 0, 0] limits [2, 2, 1]
// CHECK-NEXT: %[[R0:.+]] = nn.dispatch %[[X0]], %[[I0]] : (tensor<2x2x4xf32>, tensor<2x2x1xi64>) -> tensor<2x2x2x4xf32, #nn.routed<1>>
// CHECK-NEXT: %[[S0:.+]] = dist.all_to_all %[[R0]] axes ["ep"] from [2] to [0] {{.*}} -> tensor<1x2x4x4xf32, #nn.routed<1>>
// CHECK-NEXT: %[[H0:.+]] = nn.grouped_linear %[[S0]], %arg2
// CHECK-NEXT: %[[B0:.+]] = dist.all_to_all %[[H0]] axes ["ep"] from [0] to [2]
// CHECK-NEXT: %[[Y0:.+]] = nn.combine %[[B0]], %[[I0]]
// CHECK: %[[X1:.+]] = nn.slice %arg0 starts [2, 0, 0] limits [4, 2, 4]
// CHECK: %[[Y1:.+]] = nn.combine
// CHECK-NEXT: %[[Y:.+]] = nn.concat %[[Y0]], %[[Y1]] dim 0
// CHECK-NEXT: return %[[Y]]
// ROWS-LABEL: func.func @moved
// ROWS-COUNT-2: nn.send_rows %{{.+}} (tensor<8x1x1x4xf32>
// ROWS: return
// WHOLE-LABEL: func.func @moved
// WHOLE: nn.dispatch %arg0, %arg1
#rows = #dist.sharding<@mesh, [{}, {"ep"}, {}]>
#experts = #dist.sharding<@mesh, [{"ep"}, {}, {}]>
!x = tensor<4x2x4xf32>
!i = tensor<4x2x1xi64>
!w = tensor<1x4x4xf32>
dist.mesh @mesh = <["ep"=2]>
func.func @moved(%x: !x {dist.sharding = #rows, dist.global = tensor<4x4x4xf32>},
                 %i: !i {dist.sharding = #rows, dist.global = tensor<4x4x1xi64>},
                 %w: !w {dist.sharding = #experts, dist.global = tensor<2x4x4xf32>})
    -> (!x {dist.sharding = #rows, dist.global = tensor<4x4x4xf32>}) attributes {dist.spmd = @mesh} {
  %r = nn.dispatch %x, %i : (!x, !i) -> tensor<2x4x2x4xf32, #nn.routed<1>>
  %s = dist.all_to_all %r axes ["ep"] from [2] to [0] : (tensor<2x4x2x4xf32, #nn.routed<1>>) -> tensor<1x4x4x4xf32, #nn.routed<1>>
  %h = nn.grouped_linear %s, %w : (tensor<1x4x4x4xf32, #nn.routed<1>>, !w) -> tensor<1x4x4x4xf32, #nn.routed<1>>
  %b = dist.all_to_all %h axes ["ep"] from [0] to [2] : (tensor<1x4x4x4xf32, #nn.routed<1>>) -> tensor<2x4x2x4xf32, #nn.routed<1>>
  %y = nn.combine %b, %i : (tensor<2x4x2x4xf32, #nn.routed<1>>, !i) -> !x
  return %y : !x
}

// -----

// Where all tokens move, each rank cuts its own: between the ranks and the tokens of a rank. Sums over tokens are
// added.

// CHECK-LABEL: func.func @gradient
// CHECK: %[[OWN:.+]] = nn.reshape %arg0 : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
// CHECK-NEXT: nn.slice %[[OWN]] starts [0, 0, 0] limits [1, 2, 4]
// CHECK: %[[G0:.+]] = nn.grouped_weight_grad
// CHECK: %[[G1:.+]] = nn.grouped_weight_grad
// CHECK: nn.add %[[G0]], %[[G1]]
#rows = #dist.sharding<@mesh, [{"ep"}, {}]>
#experts = #dist.sharding<@mesh, [{"ep"}, {}, {}]>
!x = tensor<4x4xf32>
!i = tensor<4x1xi64>
!w = tensor<1x4x4xf32>
!r = tensor<2x4x4xf32, #nn.routed<1>>
!s = tensor<1x8x4xf32, #nn.routed<1>>
dist.mesh @mesh = <["ep"=2]>
func.func @gradient(%x: !x {dist.sharding = #rows, dist.global = tensor<8x4xf32>},
                    %i: !i {dist.sharding = #rows, dist.global = tensor<8x1xi64>})
    -> (!w {dist.sharding = #experts, dist.global = tensor<2x4x4xf32>}) attributes {dist.spmd = @mesh} {
  %r = nn.dispatch %x, %i : (!x, !i) -> !r
  %s = dist.all_to_all %r axes ["ep"] from [1] to [0] : (!r) -> !s
  %g = nn.grouped_weight_grad %s, %s : (!s, !s) -> !w
  return %g : !w
}
