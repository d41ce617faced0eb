// RUN: sharding-opt %s --parallelize="mesh=dp=4 expert-parallel=dp" | FileCheck %s --check-prefix=SENT
// RUN: sharding-opt %s --parallelize="mesh=dp=4 expert-parallel=dp" --compact-rows | FileCheck %s --check-prefix=ROWS
// RUN: sharding-opt %s --parallelize="mesh=dp=4 expert-parallel=dp" --compact-rows --verify-placement -o /dev/null
// RUN: sharding-opt %s --parallelize="mesh=dp=4 expert-parallel=dp target=gpu:sm_90a" | FileCheck %s --check-prefix=SENT
// RUN: sharding-opt %s --parallelize="mesh=dp=2 expert-parallel=dp" | FileCheck %s --check-prefix=ONCE
// RUN: sharding-opt %s --parallelize="mesh=dp=2 expert-parallel=dp" --compact-rows | FileCheck %s --check-prefix=SHARED
// RUN: sharding-opt %s --parallelize="mesh=dp=2 expert-parallel=dp" --compact-rows --verify-placement -o /dev/null
// RUN: sharding-opt %s --parallelize="mesh=dp=2 expert-parallel=dp" --report-file=%t.json -o /dev/null
// RUN: FileCheck %s --check-prefix=BYTES < %t.json
// RUN: sharding-opt %s --parallelize="mesh=dp=2 expert-parallel=dp expert-capacity=0.5" --report-file=%t.json -o /dev/null
// RUN: FileCheck %s --check-prefix=HALF < %t.json
// RUN: sed s/x16x/x2x/g %s | sed s/16xf32/2xf32/g | sharding-opt --parallelize="mesh=dp=2 expert-parallel=dp" | FileCheck %s --check-prefix=GATHERED
// RUN: sharding-opt %s --parallelize="mesh=dp=4 expert-parallel=dp expert-capacity=0.5" --report-file=%t.json -o /dev/null
// RUN: FileCheck %s --check-prefix=LIMITED < %t.json

// Tokens are sharded over the axis of the experts. With two choices and four ranks, rows travel.
// SENT: %[[R:.*]] = nn.dispatch %{{.*}}, %{{.*}} : (tensor<1x6x16xf32>, tensor<1x6x2xi64>) -> tensor<8x1x6x16xf32, #nn.routed<2>>
// SENT: %[[S:.*]] = dist.all_to_all %[[R]] axes ["dp"] from [1] to [0] : (tensor<8x1x6x16xf32, #nn.routed<2>>) -> tensor<2x4x6x16xf32, #nn.routed<2>>
// SENT: nn.grouped_linear %[[S]], %{{.*}} : (tensor<2x4x6x16xf32, #nn.routed<2>>, tensor<2x16x16xf32>)
// SENT: dist.all_to_all %{{.*}} axes ["dp"] from [0] to [1]
// SENT: nn.combine

// ROWS: %[[OFFSETS:.*]], %{{.*}}, %[[PLACES:.*]] = nn.route
// ROWS: %[[S:.*]], %[[PARTS:.*]], %[[OWN:.*]] = nn.send_rows %{{.*}}, %[[OFFSETS]] axes [#dist.axis_ref<"dp">] {layer = 0 : i64, nn.expected_rows = 12 : i64}
// ROWS: %[[Y:.*]] = nn.grouped_product %[[S]], %{{.*}}, %[[OWN]]
// ROWS: %[[B:.*]] = nn.return_rows %[[Y]], %[[PARTS]], %[[OFFSETS]] axes [#dist.axis_ref<"dp">] {nn.expected_rows = 12 : i64}
// ROWS: nn.sum_rows %[[B]], %[[PLACES]]

// With two ranks, a token goes to a rank once, with its choices. The sum over the experts of a rank returns.
// ONCE: %[[I:.*]] = nn.dispatch %{{.*}}, %[[C:.*]] : (tensor<2x6x2xi32>, tensor<2x6x2xi64>) -> tensor<2x2x6x2xi32, #nn.routed<2, shared = 4>>
// ONCE: %[[X:.*]] = nn.dispatch %{{.*}}, %[[C]] : (tensor<2x6x16xf32>, tensor<2x6x2xi64>) -> tensor<2x2x6x16xf32, #nn.routed<2, shared = 4>>
// ONCE: %[[M:.*]]:2 = dist.all_to_all %[[I]], %[[X]] axes ["dp"] from [1, 1] to [0, 0]
// ONCE: %[[R:.*]] = nn.dispatch %[[M]]#1, %[[M]]#0 offset %{{.*}} {nn.table_rows = 8 : i64} : {{.*}} -> tensor<4x4x6x16xf32, #nn.routed<2>>
// ONCE: %[[H:.*]] = nn.grouped_linear %[[R]]
// ONCE: %[[S:.*]] = nn.combine %[[H]], %[[M]]#0 offset %{{.*}} {nn.table_rows = 8 : i64} : {{.*}} -> tensor<1x4x6x16xf32, #nn.routed<2, shared = 4>>
// ONCE: %[[B:.*]] = dist.all_to_all %[[S]] axes ["dp"] from [0] to [1]
// ONCE: nn.combine %[[B]], %[[C]] : (tensor<2x2x6x16xf32, #nn.routed<2, shared = 4>>, tensor<2x6x2xi64>) -> tensor<2x6x16xf32>

// Rows that a rank receives are tokens of its experts.
// SHARED: %[[OFFSETS:.*]], %[[CHOICES:.*]], %[[PLACES:.*]] = nn.route %{{.*}} {experts = 2 : i64, nn.expected_rows = 19 : i64, shared = 4 : i64}
// SHARED: %[[I:.*]] = nn.take_rows %{{.*}}, %[[CHOICES]]
// SHARED: %[[X:.*]] = nn.take_rows %{{.*}}, %[[CHOICES]]
// SHARED: %[[SI:.*]], %[[PARTS:.*]], %[[OWN:.*]] = nn.send_rows %[[I]], %[[OFFSETS]]
// SHARED: %[[SX:.*]], %{{.*}}, %{{.*}} = nn.send_rows %[[X]], %[[OFFSETS]]
// SHARED: %[[INNER:.*]], %[[TAKEN:.*]], %[[AT:.*]] = nn.route %[[SI]] offset %{{.*}} rows %[[OWN]] {experts = 4 : i64, layer = 0 : i64, nn.expected_rows = 24 : i64, total = 8 : i64}
// SHARED: %[[R:.*]] = nn.take_rows %[[SX]], %[[TAKEN]] {group = 2 : i64, nested, tokens = 2 : i64}
// SHARED: %[[H:.*]] = nn.grouped_product %[[R]], %{{.*}}, %[[INNER]]
// SHARED: %[[S:.*]] = nn.sum_rows %[[H]], %[[AT]] {nested}
// SHARED: %[[B:.*]] = nn.return_rows %[[S]], %[[PARTS]], %[[OFFSETS]]
// SHARED: nn.sum_rows %[[B]], %[[PLACES]]

// A token of a rank has 2 (1 - 6/28) rows, half of them for the other rank: 18.86 of 24 choices. A row has 64
// bytes, and there are 8 of choices.
// BYTES: "kind": "all_to_all_v"
// BYTES: "bytes_per_rank": 680,
// BYTES: "kind": "all_to_all_v"
// BYTES: "bytes_per_rank": 604,

// Where experts drop half of the choices, 1 - (6/28)^0.5 of the rows are left.
// HALF: "kind": "all_to_all_v"
// HALF: "bytes_per_rank": 466,

// A row of 8 bytes, with its choices, is more than the tokens of both ranks. GPUs send no rows.
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
