// RUN: sharding-opt %s --split-input-file --partition --verify-placement | FileCheck %s

// The gradient of a query is summed on its rank. The gradients of keys and values travel with
// their chunk, in f32, and make a last move home. The next chunk arrives while one is used.

// CHECK-LABEL: func.func @full
// CHECK: %[[KV1:.*]]:2 = dist.permute %arg1, %arg2 axes ["ring"] shift 1 : (tensor<1x2x4x8xbf16>
// CHECK: %[[Q0:.*]], %[[K0:.*]], %[[V0:.*]] = nn.attention_grad %arg0, %arg1, %arg2 lse %arg3 delta %arg4 cotangent %arg5
// CHECK: %[[G0:.*]]:2 = dist.permute %[[K0]], %[[V0]] axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>
// CHECK: %[[KV2:.*]]:2 = dist.permute %[[KV1]]#0, %[[KV1]]#1 axes ["ring"] shift 1 : (tensor<1x2x4x8xbf16>
// CHECK: %[[Q1:.*]], %[[K1:.*]], %[[V1:.*]] = nn.attention_grad %arg0, %[[KV1]]#0, %[[KV1]]#1
// CHECK: %[[QS:.*]] = nn.add %[[Q0]], %[[Q1]]
// CHECK: %[[KS:.*]] = nn.add %[[G0]]#0, %[[K1]]
// CHECK: %[[VS:.*]] = nn.add %[[G0]]#1, %[[V1]]
// CHECK: %[[G1:.*]]:2 = dist.permute %[[KS]], %[[VS]] axes ["ring"] shift 1
// CHECK: %[[Q2:.*]], %[[K2:.*]], %[[V2:.*]] = nn.attention_grad %arg0, %[[KV2]]#0, %[[KV2]]#1
// CHECK: %[[QT:.*]] = nn.add %[[QS]], %[[Q2]]
// CHECK: %[[KT:.*]] = nn.add %[[G1]]#0, %[[K2]]
// CHECK: %[[VT:.*]] = nn.add %[[G1]]#1, %[[V2]]
// CHECK: %[[HOME:.*]]:2 = dist.permute %[[KT]], %[[VT]] axes ["ring"] shift 1
// CHECK: return %[[QT]], %[[HOME]]#0, %[[HOME]]#1
#x = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
#rows = #dist.sharding<@mesh, [{}, {}, {"ring"}]>
dist.mesh @mesh = <["ring"=3]>
func.func @full(%q: tensor<1x2x12x8xbf16> {nn.input = "q", dist.sharding = #x}, %k: tensor<1x2x12x8xbf16> {nn.input = "k", dist.sharding = #x},
                %v: tensor<1x2x12x8xbf16> {nn.input = "v", dist.sharding = #x}, %l: tensor<1x2x12xf32> {nn.input = "l", dist.sharding = #rows},
                %d: tensor<1x2x12xf32> {nn.input = "d", dist.sharding = #rows}, %c: tensor<1x2x12x8xbf16> {nn.input = "c", dist.sharding = #x})
    -> (tensor<1x2x12x8xf32> {nn.output = "dq", dist.sharding = #x}, tensor<1x2x12x8xf32> {nn.output = "dk", dist.sharding = #x}, tensor<1x2x12x8xf32> {nn.output = "dv", dist.sharding = #x}) {
  %k1 = dist.constrain %k <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #x} : tensor<1x2x12x8xbf16>
  %g:3 = nn.attention_grad %q, %k1, %v lse %l delta %d cotangent %c scale 0.5 {dist.sharding = [#x, #x, #x]} : (tensor<1x2x12x8xbf16>, tensor<1x2x12x8xbf16>, tensor<1x2x12x8xbf16>, tensor<1x2x12xf32>, tensor<1x2x12xf32>, tensor<1x2x12x8xbf16>) -> (tensor<1x2x12x8xf32>, tensor<1x2x12x8xf32>, tensor<1x2x12x8xf32>)
  return %g#0, %g#1, %g#2 : tensor<1x2x12x8xf32>, tensor<1x2x12x8xf32>, tensor<1x2x12x8xf32>
}

// -----

// A window of one chunk needs two steps of four: gradients go home from the second rank.

// CHECK-LABEL: func.func @window
// CHECK: dist.permute %arg0, %arg0 axes ["ring"] pairs {{\[\[}}0, 1], [1, 2], [2, 3]]
// CHECK: dist.permute %{{.*}} axes ["ring"] shift 1
// CHECK: dist.permute %{{.*}} axes ["ring"] shift 3
// CHECK-NOT: dist.permute
#x = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
#rows = #dist.sharding<@mesh, [{}, {}, {"ring"}]>
dist.mesh @mesh = <["ring"=4]>
func.func @window(%x: tensor<1x2x16x8xf32> {nn.input = "x", dist.sharding = #x}, %l: tensor<1x2x16xf32> {nn.input = "l", dist.sharding = #rows})
    -> (tensor<1x2x16x8xf32> {nn.output = "dq", dist.sharding = #x}, tensor<1x2x16x8xf32> {nn.output = "dk", dist.sharding = #x}, tensor<1x2x16x8xf32> {nn.output = "dv", dist.sharding = #x}) {
  %k = dist.constrain %x <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #x} : tensor<1x2x16x8xf32>
  %g:3 = nn.attention_grad %x, %k, %k lse %l delta %l cotangent %x scale 0.5 {causal, window_left = 3 : i64, dist.sharding = [#x, #x, #x]} : (tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>, tensor<1x2x16xf32>, tensor<1x2x16xf32>, tensor<1x2x16x8xf32>) -> (tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>)
  return %g#0, %g#1, %g#2 : tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>
}

// -----

// Padding of queries and keys adds zero: queries, keys, delta and cotangents are zero there, and
// values are numbers.

// CHECK-LABEL: func.func @padded
// CHECK-COUNT-4: nn.select
// CHECK: nn.attention_grad %{{.*}} positions
#x = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
#rows = #dist.sharding<@mesh, [{}, {}, {"ring"}]>
dist.mesh @mesh = <["ring"=2]>
func.func @padded(%x: tensor<1x2x7x8xf32> {nn.input = "x", dist.sharding = #x}, %l: tensor<1x2x7xf32> {nn.input = "l", dist.sharding = #rows})
    -> (tensor<1x2x7x8xf32> {nn.output = "dq", dist.sharding = #x}, tensor<1x2x7x8xf32> {nn.output = "dk", dist.sharding = #x}, tensor<1x2x7x8xf32> {nn.output = "dv", dist.sharding = #x}) {
  %e = nn.exp %x {dist.sharding = #x} : tensor<1x2x7x8xf32>
  %m = nn.exp %l {dist.sharding = #rows} : tensor<1x2x7xf32>
  %k = dist.constrain %e <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #x} : tensor<1x2x7x8xf32>
  %g:3 = nn.attention_grad %e, %k, %x lse %l delta %m cotangent %e scale 0.5 {dist.sharding = [#x, #x, #x]} : (tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x7xf32>, tensor<1x2x7xf32>, tensor<1x2x7x8xf32>) -> (tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>)
  return %g#0, %g#1, %g#2 : tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>
}

// -----

// The query heads of one key head are on two ranks, so the gradients of keys and values are sums
// over "tp" besides.

// CHECK-LABEL: func.func @groups
// CHECK-COUNT-3: nn.add
// CHECK: %[[HOME:.*]]:2 = dist.permute %{{.*}} axes ["ring"] shift 1 : (tensor<1x1x4x8xf32>, tensor<1x1x4x8xf32>)
// CHECK-DAG: dist.all_reduce sum %[[HOME]]#0 axes ["tp"]
// CHECK-DAG: dist.all_reduce sum %[[HOME]]#1 axes ["tp"]
#q = #dist.sharding<@mesh, [{}, {"tp"}, {"ring"}, {}]>
#x = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
#rows = #dist.sharding<@mesh, [{}, {"tp"}, {"ring"}]>
dist.mesh @mesh = <["ring"=2, "tp"=2]>
func.func @groups(%q: tensor<1x2x8x8xf32> {nn.input = "q", dist.sharding = #q}, %x: tensor<1x1x8x8xf32> {nn.input = "x", dist.sharding = #x}, %l: tensor<1x2x8xf32> {nn.input = "l", dist.sharding = #rows})
    -> (tensor<1x2x8x8xf32> {nn.output = "dq", dist.sharding = #q}, tensor<1x1x8x8xf32> {nn.output = "dk", dist.sharding = #x}, tensor<1x1x8x8xf32> {nn.output = "dv", dist.sharding = #x}) {
  %k = dist.constrain %x <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #x} : tensor<1x1x8x8xf32>
  %g:3 = nn.attention_grad %q, %k, %k lse %l delta %l cotangent %q scale 0.5 {dist.sharding = [#q, #x, #x]} : (tensor<1x2x8x8xf32>, tensor<1x1x8x8xf32>, tensor<1x1x8x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x8xf32>) -> (tensor<1x2x8x8xf32>, tensor<1x1x8x8xf32>, tensor<1x1x8x8xf32>)
  return %g#0, %g#1, %g#2 : tensor<1x2x8x8xf32>, tensor<1x1x8x8xf32>, tensor<1x1x8x8xf32>
}

// -----

// Whole queries meet the keys of their rank: the gradient of the query is a sum over ranks, and no
// chunk moves.

// CHECK-LABEL: func.func @whole_queries
// CHECK-NOT: dist.permute
// CHECK: %[[G:.*]], %{{.*}}, %{{.*}} = nn.attention_grad %arg0, %arg1, %arg1
// CHECK: dist.all_reduce sum %[[G]] axes ["ring"]
#whole = #dist.sharding<@mesh, [{}, {}, {}, {}]>
#x = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
#rows = #dist.sharding<@mesh, [{}, {}, {}]>
dist.mesh @mesh = <["ring"=2]>
func.func @whole_queries(%q: tensor<1x1x8x8xf32> {nn.input = "q", dist.sharding = #whole}, %x: tensor<1x1x8x8xf32> {nn.input = "x", dist.sharding = #x}, %l: tensor<1x1x8xf32> {nn.input = "l", dist.sharding = #rows})
    -> (tensor<1x1x8x8xf32> {nn.output = "dq", dist.sharding = #whole}, tensor<1x1x8x8xf32> {nn.output = "dk", dist.sharding = #x}, tensor<1x1x8x8xf32> {nn.output = "dv", dist.sharding = #x}) {
  %k = dist.constrain %x <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #x} : tensor<1x1x8x8xf32>
  %g:3 = nn.attention_grad %q, %k, %k lse %l delta %l cotangent %q scale 0.5 {dist.sharding = [#whole, #x, #x]} : (tensor<1x1x8x8xf32>, tensor<1x1x8x8xf32>, tensor<1x1x8x8xf32>, tensor<1x1x8xf32>, tensor<1x1x8xf32>, tensor<1x1x8x8xf32>) -> (tensor<1x1x8x8xf32>, tensor<1x1x8x8xf32>, tensor<1x1x8x8xf32>)
  return %g#0, %g#1, %g#2 : tensor<1x1x8x8xf32>, tensor<1x1x8x8xf32>, tensor<1x1x8x8xf32>
}
