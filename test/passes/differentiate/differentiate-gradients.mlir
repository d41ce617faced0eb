// RUN: sharding-opt %s --split-input-file --differentiate-gradients --recompute="mode=none" --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --split-input-file --differentiate-gradients | FileCheck %s --check-prefix=MARK
// RUN: sharding-opt %s --split-input-file --differentiate-gradients --remarks=applied,note 2>&1 | FileCheck %s --check-prefix=LOG

// The products of a layer. Nothing is computed for the input. A cotangent has the sharding of its
// value, a gradient that of its parameter.

// CHECK-LABEL: func.func @layer
// CHECK: %[[H:.*]] = nn.linear %arg0, %arg1
// CHECK: %[[DY:.*]] = nn.cast %{{.*}} {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
// CHECK: %[[DH:.*]] = nn.linear %[[DY]], %arg2 {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>, in_out}
// CHECK: %[[DV:.*]] = nn.weight_grad %[[DY]], %[[H]] {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>} : (tensor<4x8xbf16>, tensor<4x6xbf16>) -> tensor<8x6xf32>
// CHECK: %[[DU:.*]] = nn.weight_grad %[[DH]], %arg0 {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>} : (tensor<4x6xbf16>, tensor<4x8xbf16>) -> tensor<6x8xf32>
// CHECK-NEXT: return %[[DU]], %[[DV]]
// LOG: remark: [differentiate] applied: gradients of 2 parameters in 6 ops
// The ops carry a mark until `recompute` has run.
// MARK-LABEL: func.func @layer
// MARK: nn.linear %arg0, %arg1 {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>} :
// MARK: nn.linear %{{.*}}, %arg2 {{.*}}nn.backward}
// MARK: nn.weight_grad {{.*}}nn.backward}
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @layer(%x: tensor<4x8xbf16> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>},
                 %u: tensor<6x8xbf16> {nn.parameter = "up", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                 %v: tensor<8x6xbf16> {nn.parameter = "down", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<6x8xf32> {nn.output = "grad.up"}, tensor<8x6xf32> {nn.output = "grad.down"}) {
  %0 = nn.linear %x, %u {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>} : (tensor<4x8xbf16>, tensor<6x8xbf16>) -> tensor<4x6xbf16>
  %1 = nn.linear %0, %v {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}], unreduced = {"tp"}>} : (tensor<4x6xbf16>, tensor<8x6xbf16>) -> tensor<4x8xbf16>
  %2 = nn.cast %1 : (tensor<4x8xbf16>) -> tensor<4x8xf32>
  %3 = nn.reduce sum %2 dims [0, 1] : (tensor<4x8xf32>) -> tensor<f32>
  %g = nn.gradient %3 of "up" : (tensor<f32>) -> tensor<6x8xf32>
  %h = nn.gradient %3 of "down" : (tensor<f32>) -> tensor<8x6xf32>
  return %g, %h : tensor<6x8xf32>, tensor<8x6xf32>
}

// -----

// Nothing is computed for a frozen parameter. The one that the loss does not depend on has zeros.

// CHECK-LABEL: func.func @frozen
// CHECK: %[[P:.*]] = nn.mul %{{.*}}, %arg0
// CHECK: nn.reduce
// CHECK: %[[B:.*]] = nn.broadcast
// CHECK: %[[G:.*]] = nn.mul %[[B]], %[[P]]
// CHECK: %[[Z:.*]] = nn.constant dense<0.000000e+00> : tensor<3xf32>
// CHECK-NEXT: return %[[G]], %[[Z]]
// LOG: remark: [differentiate] note: the loss does not depend on parameter 'z': its gradient is zero
func.func @frozen(%x: tensor<4xf32> {nn.input = "x"}, %w: tensor<4xf32> {nn.parameter = "w"},
                  %f: tensor<4xf32> {nn.parameter = "f"}, %z: tensor<3xf32> {nn.parameter = "z"})
    -> (tensor<4xf32> {nn.output = "grad.w"}, tensor<3xf32> {nn.output = "grad.z"}) {
  %0 = nn.exp %f : tensor<4xf32>
  %1 = nn.mul %0, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = nn.mul %1, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = nn.reduce sum %2 dims [0] : (tensor<4xf32>) -> tensor<f32>
  %g = nn.gradient %3 of "w" : (tensor<f32>) -> tensor<4xf32>
  %h = nn.gradient %3 of "z" : (tensor<f32>) -> tensor<3xf32>
  return %g, %h : tensor<4xf32>, tensor<3xf32>
}

// -----

// A weight that is used twice has one gradient, summed in f32. Slices that take a value apart have
// a cotangent that is joined, without padding. Zeros go around the one that does not.

// CHECK-LABEL: func.func @shared
// CHECK: %[[A:.*]] = nn.weight_grad %{{.*}} -> tensor<8x4xf32>
// CHECK: %[[PAD:.*]] = nn.pad %[[A]] low [0, 2] high [0, 2] interior [0, 0] : (tensor<8x4xf32>) -> tensor<8x8xf32>
// CHECK: %[[D:.*]] = nn.concat %{{.*}}, %{{.*}} dim 1 : {{.*}} -> tensor<3x8xbf16>
// CHECK: %[[B:.*]] = nn.weight_grad %[[D]], %arg0 : {{.*}} -> tensor<8x8xf32>
// CHECK: %[[SUM:.*]] = nn.add %[[PAD]], %[[B]] : (tensor<8x8xf32>
// CHECK-NEXT: return %[[SUM]]
func.func @shared(%x: tensor<3x8xbf16> {nn.input = "x"}, %w: tensor<8x8xbf16> {nn.parameter = "w"}) -> (tensor<8x8xf32> {nn.output = "grad.w"}) {
  %0 = nn.linear %x, %w : (tensor<3x8xbf16>, tensor<8x8xbf16>) -> tensor<3x8xbf16>
  %1 = nn.slice %0 starts [0, 4] limits [3, 8] strides [1, 1] : (tensor<3x8xbf16>) -> tensor<3x4xbf16>
  %2 = nn.slice %0 starts [0, 0] limits [3, 4] strides [1, 1] : (tensor<3x8xbf16>) -> tensor<3x4xbf16>
  %3 = nn.mul %1, %2 : (tensor<3x4xbf16>, tensor<3x4xbf16>) -> tensor<3x4xbf16>
  %4 = nn.slice %w starts [0, 2] limits [8, 6] strides [1, 1] : (tensor<8x8xbf16>) -> tensor<8x4xbf16>
  %5 = nn.linear %3, %4 : (tensor<3x4xbf16>, tensor<8x4xbf16>) -> tensor<3x8xbf16>
  %6 = nn.cast %5 : (tensor<3x8xbf16>) -> tensor<3x8xf32>
  %7 = nn.reduce sum %6 dims [0, 1] : (tensor<3x8xf32>) -> tensor<f32>
  %g = nn.gradient %7 of "w" : (tensor<f32>) -> tensor<8x8xf32>
  return %g : tensor<8x8xf32>
}

// -----

// The gradient of a parameter of which the function has parts is joined from theirs.

// CHECK-LABEL: func.func @parts
// CHECK: %[[U:.*]] = nn.mul {{.*}} : (tensor<2x2xf32>
// CHECK: %[[V:.*]] = nn.mul {{.*}} : (tensor<3x2xf32>
// CHECK: %[[G:.*]] = nn.concat %[[U]], %[[V]] dim 0
// CHECK-NEXT: return %[[G]]
func.func @parts(%v: tensor<3x2xf32> {nn.parameter = "w", nn.parameter_offsets = array<i64: 2, 0>},
                 %u: tensor<2x2xf32> {nn.parameter = "w", nn.parameter_offsets = array<i64: 0, 0>})
    -> (tensor<5x2xf32> {nn.output = "grad.w"}) {
  %0 = nn.exp %v : tensor<3x2xf32>
  %1 = nn.reduce sum %0 dims [0, 1] : (tensor<3x2xf32>) -> tensor<f32>
  %2 = nn.exp %u : tensor<2x2xf32>
  %3 = nn.reduce sum %2 dims [0, 1] : (tensor<2x2xf32>) -> tensor<f32>
  %4 = nn.add %1, %3 : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %g = nn.gradient %4 of "w" : (tensor<f32>) -> tensor<5x2xf32>
  return %g : tensor<5x2xf32>
}

// -----

// Two losses have a backward pass each. A gradient may be used by other ops.

// CHECK-LABEL: func.func @losses
// CHECK: %[[E:.*]] = nn.exp %arg0
// CHECK: %[[G:.*]] = nn.mul %{{.*}}, %[[E]]
// CHECK: %[[FOUR:.*]] = nn.constant dense<4.000000e+00>
// CHECK: %[[Q:.*]] = nn.div %{{.*}}, %[[FOUR]]
// CHECK: %[[H:.*]] = nn.broadcast %[[Q]]
// CHECK: %[[SUM:.*]] = nn.add %[[G]], %[[H]]
// CHECK-NEXT: return %[[SUM]]
func.func @losses(%w: tensor<4xf32> {nn.parameter = "w"}) -> (tensor<4xf32> {nn.output = "y"}) {
  %0 = nn.exp %w : tensor<4xf32>
  %1 = nn.reduce sum %0 dims [0] : (tensor<4xf32>) -> tensor<f32>
  %2 = nn.reduce mean %w dims [0] : (tensor<4xf32>) -> tensor<f32>
  %g = nn.gradient %1 of "w" : (tensor<f32>) -> tensor<4xf32>
  %h = nn.gradient %2 of "w" : (tensor<f32>) -> tensor<4xf32>
  %3 = nn.add %g, %h : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %3 : tensor<4xf32>
}

// -----

// Attention gets a log-sum-exp, which its gradients read. It keeps its attributes and its sharding.

// CHECK-LABEL: func.func @attention
// CHECK: %[[O:.*]], %[[L:.*]] = nn.attention %arg0, %arg1, %arg1 scale 5.000000e-01 {causal, dist.sharding = [#dist.sharding<@mesh, [{}, {"tp"}, {}, {}]>, unit], nn.id = 7 : i64}
// CHECK: %[[D:.*]] = nn.cast %{{.*}} : (tensor<1x4x7x8xf32>) -> tensor<1x4x7x8xbf16>
// CHECK: %[[WD:.*]] = nn.cast %[[D]] : (tensor<1x4x7x8xbf16>) -> tensor<1x4x7x8xf32>
// CHECK: %[[WO:.*]] = nn.cast %[[O]] : (tensor<1x4x7x8xbf16>) -> tensor<1x4x7x8xf32>
// CHECK: %[[P:.*]] = nn.mul %[[WD]], %[[WO]]
// CHECK: %[[S:.*]] = nn.reduce sum %[[P]] dims [3] : (tensor<1x4x7x8xf32>) -> tensor<1x4x7xf32>
// CHECK: %[[DQ:.*]], %[[DK:.*]], %[[DV:.*]] = nn.attention_grad %arg0, %arg1, %arg1 lse %[[L]] delta %[[S]] cotangent %[[D]] scale 5.000000e-01 {causal, nn.whole_keys} : {{.*}} -> (tensor<1x4x7x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>)
dist.mesh @mesh = <["tp"=2]>
func.func @attention(%q: tensor<1x4x7x8xbf16> {nn.parameter = "q"}, %k: tensor<1x2x7x8xbf16> {nn.parameter = "k"})
    -> (tensor<1x4x7x8xf32> {nn.output = "grad.q"}, tensor<1x2x7x8xf32> {nn.output = "grad.k"}) {
  %0 = nn.attention %q, %k, %k scale 0.5 {causal, nn.id = 7 : i64, dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}, {}]>} : (tensor<1x4x7x8xbf16>, tensor<1x2x7x8xbf16>, tensor<1x2x7x8xbf16>) -> tensor<1x4x7x8xbf16>
  %1 = nn.cast %0 : (tensor<1x4x7x8xbf16>) -> tensor<1x4x7x8xf32>
  %2 = nn.reduce sum %1 dims [0, 1, 2, 3] : (tensor<1x4x7x8xf32>) -> tensor<f32>
  %g = nn.gradient %2 of "q" : (tensor<f32>) -> tensor<1x4x7x8xf32>
  %h = nn.gradient %2 of "k" : (tensor<f32>) -> tensor<1x2x7x8xf32>
  return %g, %h : tensor<1x4x7x8xf32>, tensor<1x2x7x8xf32>
}

// -----

// The loss does not depend on %w through the first factor. The op is erased behind the backward pass,
// also in a function without gradients.

// CHECK-LABEL: func.func @stop
// CHECK: %[[E:.*]] = nn.exp %arg0
// CHECK-NEXT: nn.mul %[[E]], %arg0
// CHECK-NOT: nn.exp
// CHECK-NOT: nn.stop_gradient
// CHECK: %[[G:.*]] = nn.mul %{{.*}}, %[[E]]
// CHECK-NEXT: return %[[G]]
func.func @stop(%w: tensor<4xf32> {nn.parameter = "w"}) -> (tensor<4xf32> {nn.output = "y"}) {
  %0 = nn.exp %w : tensor<4xf32>
  %1 = nn.stop_gradient %0 : tensor<4xf32>
  %2 = nn.mul %1, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = nn.reduce sum %2 dims [0] : (tensor<4xf32>) -> tensor<f32>
  %g = nn.gradient %3 of "w" : (tensor<f32>) -> tensor<4xf32>
  return %g : tensor<4xf32>
}

// CHECK-LABEL: func.func @no_gradient
// CHECK-NEXT: return %arg0
func.func @no_gradient(%w: tensor<4xf32> {nn.parameter = "w"}) -> (tensor<4xf32> {nn.output = "y"}) {
  %0 = nn.stop_gradient %w : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// The cotangent of a log-sum-exp is subtracted from delta. With a bias the log-sum-exp is in f64.

// CHECK-LABEL: func.func @log_sum_exp
// CHECK: %[[O:.*]], %[[L:.*]] = nn.attention
// CHECK: %[[S:.*]] = nn.reduce sum %{{.*}} dims [3]
// CHECK: %[[D:.*]] = nn.sub %[[S]], %{{.*}}
// CHECK: nn.attention_grad %arg0, %arg0, %arg0 lse %[[L]] delta %[[D]]
// CHECK-LABEL: func.func @bias
// CHECK: nn.attention {{.*}} -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf64>)
// CHECK: %[[Q:.*]], %{{.*}}, %{{.*}}, %[[B:.*]] = nn.attention_grad {{.*}} -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4x1xf32>)
// CHECK: return %[[B]]
func.func @log_sum_exp(%w: tensor<1x2x4x8xf32> {nn.parameter = "w"}) -> tensor<1x2x4x8xf32> {
  %0:2 = nn.attention %w, %w, %w scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %1 = nn.reduce sum %0#1 dims [0, 1, 2] : (tensor<1x2x4xf32>) -> tensor<f32>
  %g = nn.gradient %1 of "w" : (tensor<f32>) -> tensor<1x2x4x8xf32>
  return %g : tensor<1x2x4x8xf32>
}
func.func @bias(%x: tensor<1x2x4x8xf32>, %b: tensor<4x1xf32> {nn.parameter = "b"}) -> tensor<4x1xf32> {
  %0 = nn.attention %x, %x, %x bias %b scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4x1xf32>) -> tensor<1x2x4x8xf32>
  %1 = nn.reduce sum %0 dims [0, 1, 2, 3] : (tensor<1x2x4x8xf32>) -> tensor<f32>
  %g = nn.gradient %1 of "b" : (tensor<f32>) -> tensor<4x1xf32>
  return %g : tensor<4x1xf32>
}
