// RUN: sharding-opt %s --split-input-file --propagate-shardings | FileCheck %s

// Forward from a weight, through a reshape that takes heads apart.

// CHECK-LABEL: func.func @forward_from_weight
// CHECK: nn.linear {{.*}}dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>
// CHECK: nn.reshape {{.*}}dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>
dist.mesh @mesh = <["tp"=2]>
func.func @forward_from_weight(%x: tensor<4x8xf32> {nn.input = "x"},
                %w: tensor<12x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>})
    -> (tensor<4x4x3xf32> {nn.output = "y"}) {
  %y = nn.linear %x, %w : (tensor<4x8xf32>, tensor<12x8xf32>) -> tensor<4x12xf32>
  %z = nn.reshape %y : (tensor<4x12xf32>) -> tensor<4x4x3xf32>
  return %z : tensor<4x4x3xf32>
}

// -----

// Backward to a bias; what a dimension left open takes.

// CHECK-LABEL: func.func @backward_to_bias
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<6xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>
// CHECK: nn.add {{.*}}dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @backward_to_bias(%b: tensor<6xf32> {nn.parameter = "b"},
                %x: tensor<4x6xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {?}]>})
    -> (tensor<4x6xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>}) {
  %y = nn.add %x, %b {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>} : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// -----

// A table that two readers share is cut for the one that wants it cut.

// CHECK-LABEL: func.func @shared_table
// CHECK: nn.concat {{.*}}dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>
dist.mesh @mesh = <["tp"=4]>
func.func @shared_table(%q: tensor<2x6x16x8xf32> {nn.input = "q", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}, {}]>},
                %k: tensor<2x1x16x8xf32> {nn.input = "k", dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>},
                %c: tensor<1x1x16x4xf32> {nn.parameter = "c"})
    -> (tensor<2x6x16x8xf32> {nn.output = "a"}, tensor<2x1x16x8xf32> {nn.output = "b"}) {
  %cc = nn.concat %c, %c dim 3 : (tensor<1x1x16x4xf32>, tensor<1x1x16x4xf32>) -> tensor<1x1x16x8xf32>
  %a = nn.rotary %q, %cc, %cc : (tensor<2x6x16x8xf32>, tensor<1x1x16x8xf32>, tensor<1x1x16x8xf32>) -> tensor<2x6x16x8xf32>
  %b = nn.rotary %k, %cc, %cc {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"tp"}, {}]>} : (tensor<2x1x16x8xf32>, tensor<1x1x16x8xf32>, tensor<1x1x16x8xf32>) -> tensor<2x1x16x8xf32>
  return %a, %b : tensor<2x6x16x8xf32>, tensor<2x1x16x8xf32>
}

// -----

// The features of experts are on all ranks, and tokens on groups of them. Tokens are gathered before they are
// routed, so rows have no axis of the groups, and keep that of other data.

// CHECK-LABEL: func.func @routed_tokens
// CHECK: nn.dispatch {{.*}}dist.sharding = #dist.sharding<@mesh, [{}, {"dp"}, {}]>
// CHECK: nn.dispatch {{.*}}dist.sharding = #dist.sharding<@mesh, [{}, {"dp"}]>
// CHECK: nn.grouped_linear {{.*}}dist.sharding = #dist.sharding<@mesh, [{}, {"dp"}, {"tp"}]>
// CHECK: nn.grouped_linear {{.*}}dist.sharding = #dist.sharding<@mesh, [{}, {"dp"}, {}]>
// CHECK: nn.mul {{.*}}dist.sharding = #dist.sharding<@mesh, [{}, {"dp"}, {}]>
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @routed_tokens(%x: tensor<8x6xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp", "tp":(1)2}, {}]>},
    %v: tensor<8x1xf32> {nn.input = "v"}, %i: tensor<8x1xi64> {nn.input = "i"},
    %up: tensor<3x12x6xf32> {nn.parameter = "up", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>},
    %down: tensor<3x6x12xf32> {nn.parameter = "down"}) -> (tensor<8x6xf32> {nn.output = "y"}) {
  %r = nn.dispatch %x, %i : (tensor<8x6xf32>, tensor<8x1xi64>) -> tensor<3x8x6xf32, #nn.routed<1>>
  %d = nn.dispatch %v, %i {each} : (tensor<8x1xf32>, tensor<8x1xi64>) -> tensor<3x8xf32, #nn.routed<1>>
  %w = nn.reshape %d : (tensor<3x8xf32, #nn.routed<1>>) -> tensor<3x8x1xf32, #nn.routed<1>>
  %h = nn.grouped_linear %r, %up : (tensor<3x8x6xf32, #nn.routed<1>>, tensor<3x12x6xf32>) -> tensor<3x8x12xf32, #nn.routed<1>>
  %o = nn.grouped_linear %h, %down : (tensor<3x8x12xf32, #nn.routed<1>>, tensor<3x6x12xf32>) -> tensor<3x8x6xf32, #nn.routed<1>>
  %p = nn.mul %o, %w : (tensor<3x8x6xf32, #nn.routed<1>>, tensor<3x8x1xf32, #nn.routed<1>>) -> tensor<3x8x6xf32, #nn.routed<1>>
  %y = nn.combine %p, %i : (tensor<3x8x6xf32, #nn.routed<1>>, tensor<8x1xi64>) -> tensor<8x6xf32>
  return %y : tensor<8x6xf32>
}

// -----

// An axis shards one factor of a value. Tokens over two axes keep the first one where features have a part of the second.

// CHECK-LABEL: func.func @first_axes
// CHECK: nn.linear {{.*}}dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @first_axes(%x: tensor<8x6xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp", "tp":(1)2}, {}]>},
    %w: tensor<12x6xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>})
    -> (tensor<8x12xf32> {nn.output = "y"}) {
  %y = nn.linear %x, %w : (tensor<8x6xf32>, tensor<12x6xf32>) -> tensor<8x12xf32>
  return %y : tensor<8x12xf32>
}
