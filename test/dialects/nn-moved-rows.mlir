// RUN: sharding-opt %s --parallelize="mesh=dp=4 expert-parallel=dp" | FileCheck %s --check-prefix=SENT
// RUN: sharding-opt %s --parallelize="mesh=dp=4 expert-parallel=dp" --compact-rows | FileCheck %s --check-prefix=ROWS
// RUN: sharding-opt %s --parallelize="mesh=dp=4 expert-parallel=dp" --compact-rows --verify-placement -o /dev/null
// RUN: sharding-opt %s --parallelize="mesh=dp=2 expert-parallel=dp" | FileCheck %s --check-prefix=GATHERED
// RUN: sharding-opt %s --parallelize="mesh=dp=4 expert-parallel=dp expert-capacity=0.5" --report-file=%t.json -o /dev/null
// RUN: FileCheck %s --check-prefix=LIMITED < %t.json

// Tokens are sharded over the axis of the experts. With two choices and four ranks, rows travel.
// SENT: %[[R:.*]] = nn.dispatch %{{.*}}, %{{.*}} : (tensor<1x6x16xf32>, tensor<1x6x2xi64>) -> tensor<8x1x6x16xf32, #nn.routed<2>>
// SENT: %[[S:.*]] = dist.all_to_all %[[R]] axes ["dp"] from [1] to [0] : (tensor<8x1x6x16xf32, #nn.routed<2>>) -> tensor<2x4x6x16xf32, #nn.routed<2>>
// SENT: nn.grouped_linear %[[S]], %{{.*}} : (tensor<2x4x6x16xf32, #nn.routed<2>>, tensor<2x16x16xf32>)
// SENT: dist.all_to_all %{{.*}} axes ["dp"] from [0] to [1]
// SENT: nn.combine

// ROWS: %[[OFFSETS:.*]], %{{.*}}, %[[PLACES:.*]] = nn.route
// ROWS: %[[S:.*]], %[[PARTS:.*]], %[[OWN:.*]] = nn.send_rows %{{.*}}, %[[OFFSETS]] axes [#dist.axis_ref<"dp">] {layer = 0 : i64}
// ROWS: %[[Y:.*]] = nn.grouped_product %[[S]], %{{.*}}, %[[OWN]]
// ROWS: %[[B:.*]] = nn.return_rows %[[Y]], %[[PARTS]], %[[OFFSETS]] axes [#dist.axis_ref<"dp">]
// ROWS: nn.sum_rows %[[B]], %[[PLACES]]

// With two ranks the tokens are less than their rows.
// GATHERED: dist.all_gather
// GATHERED: nn.dispatch %{{.*}} offset
// GATHERED-NOT: dist.all_to_all

// A rank has 12 rows of 64 bytes. Three of four go to other ranks, and an expert takes half of its part.
// LIMITED: "kind": "all_to_all_v"
// LIMITED: "bytes_per_rank": 288,
// LIMITED: "bytes_at_capacity": 768,

func.func @main(%x: tensor<4x6x16xf32> {nn.input = "x"}, %i: tensor<4x6x2xi64> {nn.input = "i"}, %w: tensor<8x16x16xf32> {nn.parameter = "w"}) -> (tensor<4x6x16xf32> {nn.output = "y"}) {
  %r = nn.dispatch %x, %i : (tensor<4x6x16xf32>, tensor<4x6x2xi64>) -> tensor<8x4x6x16xf32, #nn.routed<2>>
  %h = nn.grouped_linear %r, %w : (tensor<8x4x6x16xf32, #nn.routed<2>>, tensor<8x16x16xf32>) -> tensor<8x4x6x16xf32, #nn.routed<2>>
  %y = nn.combine %h, %i : (tensor<8x4x6x16xf32, #nn.routed<2>>, tensor<4x6x2xi64>) -> tensor<4x6x16xf32>
  return %y : tensor<4x6x16xf32>
}
