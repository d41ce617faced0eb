// Floats that follow from codes become parameters; where they are read, in which function, and under which name.
// RUN: sharding-opt %s --widen-stored | FileCheck %s

dist.mesh @mesh = <["tp"=2]>
nn.state @trained : tensor<4x8xf32>

// The two functions share a weight. Codes that `second` reads besides keep their name.
// CHECK-LABEL: func.func @first
// CHECK-SAME: %[[X:.*]]: tensor<2x8xbf16> {nn.input = "x"}
// CHECK-SAME: %[[W:.*]]: tensor<4x8xbf16> {nn.aliases = ["tied"], nn.parameter = "w"}
// CHECK-SAME: %[[V:.*]]: tensor<4x8xf32> {nn.parameter = "v.widened"}
func.func @first(%x: tensor<2x8xbf16> {nn.input = "x"}, %c: tensor<4x8xf8E4M3FN> {nn.parameter = "w", nn.aliases = ["tied"]},
                 %s: tensor<4x1xbf16> {nn.parameter = "w.scale"}, %d: tensor<4x8xi8> {nn.parameter = "v"})
    -> (tensor<2x4xbf16> {nn.output = "y"}, tensor<4x8xf32> {nn.output = "v"}) {
  // The scale's own chain and the cast to the model's type are part of the weight.
  // CHECK-NEXT: nn.linear %[[X]], %[[W]]
  // CHECK-NEXT: return %{{.*}}, %[[V]]
  %one = nn.constant dense<1.0> : tensor<bf16>
  %t = nn.add %s, %one : (tensor<4x1xbf16>, tensor<bf16>) -> tensor<4x1xbf16>
  %w = nn.dequantize %c, %t {block = [1, 8]} : (tensor<4x8xf8E4M3FN>, tensor<4x1xbf16>) -> tensor<4x8xf32>
  %n = nn.cast %w : (tensor<4x8xf32>) -> tensor<4x8xbf16>
  %y = nn.linear %x, %n : (tensor<2x8xbf16>, tensor<4x8xbf16>) -> tensor<2x4xbf16>
  %v = nn.widen %d : (tensor<4x8xi8>) -> tensor<4x8xf32>
  return %y, %v : tensor<2x4xbf16>, tensor<4x8xf32>
}

// CHECK-LABEL: func.func @second
// CHECK-SAME: %[[X:.*]]: tensor<2x8xbf16> {nn.input = "x"}
// CHECK-SAME: %[[W:.*]]: tensor<4x8xbf16> {nn.parameter = "w"}
// CHECK-SAME: %[[D:.*]]: tensor<4x8xi8> {nn.parameter = "v"}
func.func @second(%x: tensor<2x8xbf16> {nn.input = "x"}, %c: tensor<4x8xf8E4M3FN> {nn.parameter = "w"},
                  %s: tensor<4x1xbf16> {nn.parameter = "w.scale"}, %d: tensor<4x8xi8> {nn.parameter = "v"})
    -> (tensor<2x4xbf16> {nn.output = "z"}, tensor<4x8xi8> {nn.output = "codes"}) {
  // CHECK-NEXT: nn.linear %[[X]], %[[W]]
  // CHECK-NEXT: return %{{.*}}, %[[D]]
  %one = nn.constant dense<1.0> : tensor<bf16>
  %t = nn.add %s, %one : (tensor<4x1xbf16>, tensor<bf16>) -> tensor<4x1xbf16>
  %w = nn.dequantize %c, %t {block = [1, 8]} : (tensor<4x8xf8E4M3FN>, tensor<4x1xbf16>) -> tensor<4x8xf32>
  %n = nn.cast %w : (tensor<4x8xf32>) -> tensor<4x8xbf16>
  %y = nn.linear %x, %n : (tensor<2x8xbf16>, tensor<4x8xbf16>) -> tensor<2x4xbf16>
  return %y, %d : tensor<2x4xbf16>, tensor<4x8xi8>
}

// A repetition is no part of a weight, nor are the weights of a layout and of a state.
// CHECK-LABEL: func.func @third
// CHECK-SAME: %[[R:.*]]: tensor<1x8xf32> {nn.parameter = "r"}
// CHECK-SAME: %[[L:.*]]: tensor<4x8xf8E4M3FN> {dist.sharding
func.func @third(%r: tensor<1x8xi8> {nn.parameter = "r"},
                 %l: tensor<4x8xf8E4M3FN> {nn.parameter = "l", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                 %p: tensor<4x8xf32> {nn.parameter = "trained"})
    -> (tensor<6x8xf32> {nn.output = "a"}, tensor<4x8xf32> {nn.output = "b"}, tensor<4x8xf32> {nn.output = "c"}) {
  // CHECK: nn.broadcast %[[R]]
  // CHECK: nn.widen %[[L]]
  // CHECK: nn.add
  %a = nn.widen %r : (tensor<1x8xi8>) -> tensor<1x8xf32>
  %b = nn.broadcast %a : (tensor<1x8xf32>) -> tensor<6x8xf32>
  %c = nn.widen %l : (tensor<4x8xf8E4M3FN>) -> tensor<4x8xf32>
  %d = nn.add %p, %c : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %b, %c, %d : tensor<6x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}
