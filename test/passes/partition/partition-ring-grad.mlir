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

// -----

// The gradient of a bias has a block of rows and columns in each step. Blocks of all steps, at their
// places, are whole rows.

// CHECK-LABEL: func.func @bias
// CHECK: %[[B0:.*]] = dist.slice %arg3 axes ["ring"] dims [3] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
// CHECK: %[[Q0:.*]], %[[K0:.*]], %[[V0:.*]], %[[G0:.*]] = nn.attention_grad %arg0, %arg1, %arg1 bias %[[B0]] lse
// CHECK: %[[B1:.*]] = dist.slice %arg3 axes ["ring"] dims [3] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
// CHECK: %[[Q1:.*]], %[[K1:.*]], %[[V1:.*]], %[[G1:.*]] = nn.attention_grad %arg0, %{{.*}}, %{{.*}} bias %[[B1]] lse
// CHECK: dist.permute {{.*}} shift 1 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
// CHECK: %[[G:.*]] = dist.place %[[G0]], %[[G1]] axes ["ring"] dim 3 shifts [0, 1] : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x8xf32>
// CHECK: return %{{.*}}, %{{.*}}, %{{.*}}, %[[G]]
#x = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
#rows = #dist.sharding<@mesh, [{}, {}, {"ring"}]>
dist.mesh @mesh = <["ring"=2]>
func.func @bias(%q: tensor<1x2x8x8xf32> {nn.input = "q", dist.sharding = #x}, %k: tensor<1x2x8x8xf32> {nn.input = "k", dist.sharding = #x},
                %l: tensor<1x2x8xf32> {nn.input = "l", dist.sharding = #rows}, %b: tensor<1x2x8x8xf32> {nn.input = "b", dist.sharding = #x})
    -> (tensor<1x2x8x8xf32> {nn.output = "dq", dist.sharding = #x}, tensor<1x2x8x8xf32> {nn.output = "dk", dist.sharding = #x}, tensor<1x2x8x8xf32> {nn.output = "dv", dist.sharding = #x}, tensor<1x2x8x8xf32> {nn.output = "db", dist.sharding = #x}) {
  %k1 = dist.constrain %k <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #x} : tensor<1x2x8x8xf32>
  %g:4 = nn.attention_grad %q, %k1, %k1 bias %b lse %l delta %l cotangent %q scale 0.5 {dist.sharding = [#x, #x, #x, #x]} : (tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x8xf32>) -> (tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>)
  return %g#0, %g#1, %g#2, %g#3 : tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>
}

// -----

// The order of the keys is undone, and their padding cut off. The window needs two steps of four
// in contiguous order, in zigzag order three. The other chunk has zeros.

// CHECK-LABEL: func.func @bias_in_order
// CHECK-COUNT-3: nn.attention_grad
// CHECK-NOT: nn.attention_grad
// CHECK: %[[G:.*]] = dist.place %{{.*}}, %{{.*}}, %{{.*}} axes ["ring"] dim 3 shifts [0, 1, 3] : {{.*}} -> tensor<1x1x4x16xf32>
// CHECK: %[[N:.*]] = dist.reorder %[[G]] dim 3 from <15 pad 16 zigzag 4> to <15 pad 16>
// CHECK: nn.slice %[[N]] starts [0, 0, 0, 0] limits [1, 1, 4, 15] strides [1, 1, 1, 1] : (tensor<1x1x4x16xf32>) -> tensor<1x1x4x15xf32>
#x = #dist.sharding<@mesh, [{}, {}, (15 zigzag 4{"ring"}), {}]>
#rows = #dist.sharding<@mesh, [{}, {}, (15 zigzag 4{"ring"})]>
dist.mesh @mesh = <["ring"=4]>
func.func @bias_in_order(%x: tensor<1x1x15x8xf32> {nn.input = "x", dist.sharding = #x}, %l: tensor<1x1x15xf32> {nn.input = "l", dist.sharding = #rows}, %b: tensor<1x1x15x15xf32> {nn.input = "b", dist.sharding = #x})
    -> (tensor<1x1x15x15xf32> {nn.output = "db", dist.sharding = #x}) {
  %k = dist.constrain %x <@mesh, [{}, {}, (15 zigzag 4{"ring"}), {}]> {dist.sharding = #x} : tensor<1x1x15x8xf32>
  %g:4 = nn.attention_grad %x, %k, %k bias %b lse %l delta %l cotangent %x scale 0.5 {causal, window_left = 1 : i64, dist.sharding = [#x, #x, #x, #x]} : (tensor<1x1x15x8xf32>, tensor<1x1x15x8xf32>, tensor<1x1x15x8xf32>, tensor<1x1x15x15xf32>, tensor<1x1x15xf32>, tensor<1x1x15xf32>, tensor<1x1x15x8xf32>) -> (tensor<1x1x15x8xf32>, tensor<1x1x15x8xf32>, tensor<1x1x15x8xf32>, tensor<1x1x15x15xf32>)
  return %g#3 : tensor<1x1x15x15xf32>
}

// -----

// A bias without rows: each rank has the sum over its queries.

// CHECK-LABEL: func.func @bias_of_keys
// CHECK: %[[G:.*]] = dist.place %{{.*}}, %{{.*}} axes ["ring"] dim 3 shifts [0, 1] : (tensor<1x2x1x4xf32>, tensor<1x2x1x4xf32>) -> tensor<1x2x1x8xf32>
// CHECK: dist.all_reduce sum %[[G]] axes ["ring"]
#x = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
#rows = #dist.sharding<@mesh, [{}, {}, {"ring"}]>
#b = #dist.sharding<@mesh, [{}, {}, {}, {}]>
dist.mesh @mesh = <["ring"=2]>
func.func @bias_of_keys(%x: tensor<1x2x8x8xf32> {nn.input = "x", dist.sharding = #x}, %l: tensor<1x2x8xf32> {nn.input = "l", dist.sharding = #rows}, %b: tensor<1x2x1x8xf32> {nn.input = "b", dist.sharding = #b})
    -> (tensor<1x2x1x8xf32> {nn.output = "db", dist.sharding = #b}) {
  %k = dist.constrain %x <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #x} : tensor<1x2x8x8xf32>
  %g:4 = nn.attention_grad %x, %k, %k bias %b lse %l delta %l cotangent %x scale 0.5 {dist.sharding = [#x, #x, #x, #b]} : (tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x1x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x8xf32>) -> (tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x1x8xf32>)
  return %g#3 : tensor<1x2x1x8xf32>
}

// -----

// Biases that broadcast over the keys: the steps add up. Without rows, so do the ranks, and those of
// the batch.

// CHECK-LABEL: func.func @bias_of_queries
// CHECK-NOT: dist.place
// CHECK: %[[S:.*]] = nn.add %{{.*}}, %{{.*}} : (tensor<1x2x4x1xf32>, tensor<1x2x4x1xf32>)
// CHECK: %[[U:.*]] = nn.add %{{.*}}, %{{.*}} : (tensor<1x2x1x1xf32>, tensor<1x2x1x1xf32>)
// CHECK: %[[T:.*]] = dist.all_reduce sum %[[S]] axes ["dp"]
// CHECK: %[[W:.*]] = dist.all_reduce sum %[[U]] axes ["dp", "ring"]
// CHECK: return %[[T]], %[[W]]
#x = #dist.sharding<@mesh, [{"dp"}, {}, {"ring"}, {}]>
#rows = #dist.sharding<@mesh, [{"dp"}, {}, {"ring"}]>
#b = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
#h = #dist.sharding<@mesh, [{}, {}, {}, {}]>
dist.mesh @mesh = <["dp"=2, "ring"=2]>
func.func @bias_of_queries(%x: tensor<2x2x8x8xf32> {nn.input = "x", dist.sharding = #x}, %l: tensor<2x2x8xf32> {nn.input = "l", dist.sharding = #rows}, %b: tensor<1x2x8x1xf32> {nn.input = "b", dist.sharding = #b}, %h: tensor<1x2x1x1xf32> {nn.input = "h", dist.sharding = #h})
    -> (tensor<1x2x8x1xf32> {nn.output = "db", dist.sharding = #b}, tensor<1x2x1x1xf32> {nn.output = "dh", dist.sharding = #h}) {
  %k = dist.constrain %x <@mesh, [{"dp"}, {}, {"ring"}, {}]> {dist.sharding = #x} : tensor<2x2x8x8xf32>
  %g:4 = nn.attention_grad %x, %k, %k bias %b lse %l delta %l cotangent %x scale 0.5 {dist.sharding = [#x, #x, #x, #b]} : (tensor<2x2x8x8xf32>, tensor<2x2x8x8xf32>, tensor<2x2x8x8xf32>, tensor<1x2x8x1xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>, tensor<2x2x8x8xf32>) -> (tensor<2x2x8x8xf32>, tensor<2x2x8x8xf32>, tensor<2x2x8x8xf32>, tensor<1x2x8x1xf32>)
  %f:4 = nn.attention_grad %x, %k, %k bias %h lse %l delta %l cotangent %x scale 0.5 {dist.sharding = [#x, #x, #x, #h]} : (tensor<2x2x8x8xf32>, tensor<2x2x8x8xf32>, tensor<2x2x8x8xf32>, tensor<1x2x1x1xf32>, tensor<2x2x8xf32>, tensor<2x2x8xf32>, tensor<2x2x8x8xf32>) -> (tensor<2x2x8x8xf32>, tensor<2x2x8x8xf32>, tensor<2x2x8x8xf32>, tensor<1x2x1x1xf32>)
  return %g#3, %f#3 : tensor<1x2x8x1xf32>, tensor<1x2x1x1xf32>
}

// -----

// A mask that needs one step. Its chunk, or its block, is placed all the same.

// CHECK-LABEL: func.func @bias_of_keys_in_one_step
// CHECK: %[[Q:.*]], %[[K:.*]], %[[V:.*]], %[[B:.*]] = nn.attention_grad
// CHECK: %[[G:.*]] = dist.place %[[B]] axes ["ring"] dim 3 shifts [0] : (tensor<1x2x1x4xf32>) -> tensor<1x2x1x8xf32>
// CHECK: dist.place %{{.*}} axes ["ring"] dim 3 shifts [0] : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x8xf32>
// CHECK: dist.all_reduce sum %[[G]] axes ["ring"]
#x = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
#rows = #dist.sharding<@mesh, [{}, {}, {"ring"}]>
#b = #dist.sharding<@mesh, [{}, {}, {}, {}]>
dist.mesh @mesh = <["ring"=2]>
func.func @bias_of_keys_in_one_step(%x: tensor<1x2x8x8xf32> {nn.input = "x", dist.sharding = #x}, %l: tensor<1x2x8xf32> {nn.input = "l", dist.sharding = #rows}, %b: tensor<1x2x1x8xf32> {nn.input = "b", dist.sharding = #b}, %w: tensor<1x2x8x8xf32> {nn.input = "w", dist.sharding = #x})
    -> (tensor<1x2x1x8xf32> {nn.output = "db", dist.sharding = #b}, tensor<1x2x8x8xf32> {nn.output = "dw", dist.sharding = #x}) {
  %k = dist.constrain %x <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #x} : tensor<1x2x8x8xf32>
  %g:4 = nn.attention_grad %x, %k, %k bias %b lse %l delta %l cotangent %x scale 0.5 {causal, window_left = 0 : i64, dist.sharding = [#x, #x, #x, #b]} : (tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x1x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x8xf32>) -> (tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x1x8xf32>)
  %h:4 = nn.attention_grad %x, %k, %k bias %w lse %l delta %l cotangent %x scale 0.5 {causal, window_left = 0 : i64, dist.sharding = [#x, #x, #x, #x]} : (tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8xf32>, tensor<1x2x8x8xf32>) -> (tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>)
  return %g#3, %h#3 : tensor<1x2x1x8xf32>, tensor<1x2x8x8xf32>
}
