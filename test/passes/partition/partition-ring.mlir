// RUN: sharding-opt %s --split-input-file --partition --verify-placement | FileCheck %s

// A causal mask in contiguous order: a rank sees the chunks before its own, and chunks go
// no further than that.

// CHECK-LABEL: func.func @causal
// CHECK: %[[O0:.*]], %[[L0:.*]] = nn.attention %arg0, %arg1, %arg2
// CHECK: %[[A:.*]]:2 = dist.permute %arg1, %arg2 axes ["ring"] pairs {{\[\[}}0, 1], [1, 2], [2, 3]]
// CHECK: dist.positions <16{"ring"}> shift 1
// CHECK: %[[O1:.*]], %[[L1:.*]] = nn.attention %arg0, %[[A]]#0, %[[A]]#1
// CHECK: %[[M1:.*]], %[[N1:.*]] = nn.merge_attention %[[O0]], %[[L0]], %[[O1]], %[[L1]] :
// CHECK: %[[B:.*]]:2 = dist.permute %[[A]]#0, %[[A]]#1 axes ["ring"] pairs {{\[\[}}1, 2], [2, 3]]
// CHECK: %[[O2:.*]], %[[L2:.*]] = nn.attention %arg0, %[[B]]#0, %[[B]]#1
// CHECK: %[[M2:.*]], %[[N2:.*]] = nn.merge_attention %[[M1]], %[[N1]], %[[O2]], %[[L2]] :
// CHECK: %[[C:.*]]:2 = dist.permute %[[B]]#0, %[[B]]#1 axes ["ring"] pairs {{\[\[}}2, 3]]
// CHECK: %[[O3:.*]], %[[L3:.*]] = nn.attention %arg0, %[[C]]#0, %[[C]]#1
// CHECK: %[[M3:.*]], %{{.*}} = nn.merge_attention %[[M2]], %[[N2]], %[[O3]], %[[L3]] :
// CHECK-NOT: dist.permute
// CHECK: return %[[M3]]
#causal = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
dist.mesh @mesh = <["ring"=4]>
func.func @causal(%q: tensor<1x2x16x8xf32> {nn.input = "q", dist.sharding = #causal},
                  %k: tensor<1x2x16x8xf32> {nn.input = "k", dist.sharding = #causal},
                  %v: tensor<1x2x16x8xf32> {nn.input = "v", dist.sharding = #causal})
    -> (tensor<1x2x16x8xf32> {nn.output = "o", dist.sharding = #causal}) {
  %q1 = dist.constrain %q <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #causal} : tensor<1x2x16x8xf32>
  %k1 = dist.constrain %k <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #causal} : tensor<1x2x16x8xf32>
  %v1 = dist.constrain %v <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #causal} : tensor<1x2x16x8xf32>
  %o = nn.attention %q1, %k1, %v1 scale 0.5 {causal, dist.sharding = #causal} : (tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>) -> tensor<1x2x16x8xf32>
  return %o : tensor<1x2x16x8xf32>
}

// -----

// A window over the chunk before: the first rank does not look around the ring's end.

// CHECK-LABEL: func.func @window
// CHECK: dist.permute %arg1, %arg2 axes ["ring"] pairs {{\[\[}}0, 1], [1, 2], [2, 3]]
// CHECK-NOT: dist.permute
#window = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
dist.mesh @mesh = <["ring"=4]>
func.func @window(%q: tensor<1x2x16x8xf32> {nn.input = "q", dist.sharding = #window},
                  %k: tensor<1x2x16x8xf32> {nn.input = "k", dist.sharding = #window},
                  %v: tensor<1x2x16x8xf32> {nn.input = "v", dist.sharding = #window})
    -> (tensor<1x2x16x8xf32> {nn.output = "o", dist.sharding = #window}) {
  %q1 = dist.constrain %q <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #window} : tensor<1x2x16x8xf32>
  %k1 = dist.constrain %k <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #window} : tensor<1x2x16x8xf32>
  %v1 = dist.constrain %v <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #window} : tensor<1x2x16x8xf32>
  %o = nn.attention %q1, %k1, %v1 scale 0.5 {causal, window_left = 3 : i64, dist.sharding = #window} : (tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>) -> tensor<1x2x16x8xf32>
  return %o : tensor<1x2x16x8xf32>
}

// -----

// Fewer keys than ranks: only the first chunks exist, and each goes to all.

// CHECK-LABEL: func.func @few
// CHECK: dist.permute %arg1, %arg2 axes ["ring"] pairs {{\[\[}}0, 1], [1, 2]]
// CHECK: dist.permute %{{.*}} axes ["ring"] pairs {{\[\[}}2, 0], [1, 2]]
// CHECK-NOT: dist.permute
#few = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
dist.mesh @mesh = <["ring"=3]>
func.func @few(%q: tensor<1x2x2x8xf32> {nn.input = "q", dist.sharding = #few},
               %k: tensor<1x2x2x8xf32> {nn.input = "k", dist.sharding = #few},
               %v: tensor<1x2x2x8xf32> {nn.input = "v", dist.sharding = #few})
    -> (tensor<1x2x2x8xf32> {nn.output = "o", dist.sharding = #few}) {
  %q1 = dist.constrain %q <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #few} : tensor<1x2x2x8xf32>
  %k1 = dist.constrain %k <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #few} : tensor<1x2x2x8xf32>
  %v1 = dist.constrain %v <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #few} : tensor<1x2x2x8xf32>
  %o = nn.attention %q1, %k1, %v1 scale 0.5 {dist.sharding = #few} : (tensor<1x2x2x8xf32>, tensor<1x2x2x8xf32>, tensor<1x2x2x8xf32>) -> tensor<1x2x2x8xf32>
  return %o : tensor<1x2x2x8xf32>
}

// -----

// In zigzag order every rank needs every chunk.

// CHECK-LABEL: func.func @zigzag
// CHECK-COUNT-3: dist.permute %{{.*}} axes ["ring"] shift 1
// CHECK-NOT: dist.permute
#zigzag = #dist.sharding<@mesh, [{}, {}, (16 zigzag 4{"ring"}), {}]>
dist.mesh @mesh = <["ring"=4]>
func.func @zigzag(%q: tensor<1x2x16x8xf32> {nn.input = "q", dist.sharding = #zigzag},
                  %k: tensor<1x2x16x8xf32> {nn.input = "k", dist.sharding = #zigzag},
                  %v: tensor<1x2x16x8xf32> {nn.input = "v", dist.sharding = #zigzag})
    -> (tensor<1x2x16x8xf32> {nn.output = "o", dist.sharding = #zigzag}) {
  %q1 = dist.constrain %q <@mesh, [{}, {}, (16 zigzag 4{"ring"}), {}]> {dist.sharding = #zigzag} : tensor<1x2x16x8xf32>
  %k1 = dist.constrain %k <@mesh, [{}, {}, (16 zigzag 4{"ring"}), {}]> {dist.sharding = #zigzag} : tensor<1x2x16x8xf32>
  %v1 = dist.constrain %v <@mesh, [{}, {}, (16 zigzag 4{"ring"}), {}]> {dist.sharding = #zigzag} : tensor<1x2x16x8xf32>
  %o = nn.attention %q1, %k1, %v1 scale 0.5 {causal, dist.sharding = #zigzag} : (tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>) -> tensor<1x2x16x8xf32>
  return %o : tensor<1x2x16x8xf32>
}

// -----

// A length is a mask of keys, the same for all of a batch that ranks share.
// CHECK-LABEL: func.func @length
// CHECK: %[[SEEN:.+]] = nn.constant dense<{{\[\[}}true, true, true, true, true, false, false, false]]> : tensor<1x8xi1>
// CHECK: %[[ALL:.+]] = nn.broadcast %[[SEEN]] : (tensor<1x8xi1>) -> tensor<2x8xi1>
// CHECK: %[[OWN:.+]] = dist.slice %[[ALL]] axes ["ring"] dims [1] : (tensor<2x8xi1>) -> tensor<2x4xi1>
// CHECK: nn.attention {{.+}} key_padding %[[OWN]]
// CHECK: %[[NEXT:.+]] = dist.slice %[[ALL]] axes ["ring"] dims [1] shift 1 : (tensor<2x8xi1>) -> tensor<2x4xi1>
// CHECK: nn.attention {{.+}} key_padding %[[NEXT]]
#both = #dist.sharding<@mesh, [{"dp"}, {}, {"ring"}, {}]>
dist.mesh @mesh = <["dp"=2, "ring"=2]>
func.func @length(%q: tensor<4x2x8x8xf32> {nn.input = "q", dist.sharding = #both},
                  %k: tensor<4x2x8x8xf32> {nn.input = "k", dist.sharding = #both})
    -> (tensor<4x2x8x8xf32> {nn.output = "o", dist.sharding = #both}) {
  %k1 = dist.constrain %k <@mesh, [{"dp"}, {}, {"ring"}, {}]> {dist.sharding = #both} : tensor<4x2x8x8xf32>
  %o = nn.attention %q, %k1, %k1 scale 0.5 {kv_length = 5 : i64, dist.sharding = #both} : (tensor<4x2x8x8xf32>, tensor<4x2x8x8xf32>, tensor<4x2x8x8xf32>) -> tensor<4x2x8x8xf32>
  return %o : tensor<4x2x8x8xf32>
}

// -----

// Lengths of rows count positions: each step has those of its chunk, and the same lengths.
// CHECK-LABEL: func.func @lengths
// CHECK: %[[P0:.+]] = dist.positions <7 pad 8{"ring"}> : tensor<4xi64>
// CHECK: nn.attention {{.+}} positions %{{.+}}, %[[P0]] kv_lengths %arg2 scale
// CHECK: %[[P1:.+]] = dist.positions <7 pad 8{"ring"}> shift 1 : tensor<4xi64>
// CHECK: nn.attention {{.+}} positions %{{.+}}, %[[P1]] kv_lengths %arg2 scale
#lengths = #dist.sharding<@mesh, [{"dp"}, {}, {"ring"}, {}]>
dist.mesh @mesh = <["dp"=2, "ring"=2]>
func.func @lengths(%q: tensor<4x2x7x8xf32> {nn.input = "q", dist.sharding = #lengths},
                   %k: tensor<4x2x7x8xf32> {nn.input = "k", dist.sharding = #lengths},
                   %n: tensor<4xi64> {nn.input = "n", dist.sharding = #dist.sharding<@mesh, [{"dp"}]>})
    -> (tensor<4x2x7x8xf32> {nn.output = "o", dist.sharding = #lengths}) {
  %k1 = dist.constrain %k <@mesh, [{"dp"}, {}, {"ring"}, {}]> {dist.sharding = #lengths} : tensor<4x2x7x8xf32>
  %o = nn.attention %q, %k1, %k1 kv_lengths %n scale 0.5 {dist.sharding = #lengths} : (tensor<4x2x7x8xf32>, tensor<4x2x7x8xf32>, tensor<4x2x7x8xf32>, tensor<4xi64>) -> tensor<4x2x7x8xf32>
  return %o : tensor<4x2x7x8xf32>
}

// -----

// Positions of the program are cut as the keys, in their order. In padding they are negative,
// and chunks go around all ranks.
// CHECK-LABEL: func.func @own_positions
// CHECK: %[[ALL:.+]] = dist.pad %arg1 dims [1] : (tensor<2x7xi64>) -> tensor<2x8xi64>
// CHECK: %[[OWN:.+]] = dist.slice %[[ALL]] axes ["ring"] dims [1] : (tensor<2x8xi64>) -> tensor<2x4xi64>
// CHECK: %[[AT:.+]] = dist.positions <7 pad 8{"ring"}> : tensor<4xi64>
// CHECK: %[[IS_KEY:.+]] = nn.compare ge %[[AT]], %{{.+}} : (tensor<4xi64>, tensor<i64>) -> tensor<4xi1>
// CHECK: %[[P:.+]] = nn.select %[[IS_KEY]], %[[OWN]], %{{.+}} : (tensor<4xi1>, tensor<2x4xi64>, tensor<i64>) -> tensor<2x4xi64>
// CHECK: nn.attention {{.+}} positions %{{.+}}, %[[P]] scale {{.+}} {causal}
// CHECK: dist.permute {{.+}} shift 1
// CHECK: nn.attention {{.+}} positions %{{.+}}, %{{.+}} scale {{.+}} {causal}
#own = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
dist.mesh @mesh = <["ring"=2]>
func.func @own_positions(%q: tensor<2x2x7x8xf32> {nn.input = "q", dist.sharding = #own},
                         %p: tensor<2x7xi64> {nn.input = "p", dist.sharding = #dist.sharding<@mesh, [{}, {}]>})
    -> (tensor<2x2x7x8xf32> {nn.output = "o", dist.sharding = #own}) {
  %k1 = dist.constrain %q <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #own} : tensor<2x2x7x8xf32>
  %o = nn.attention %q, %k1, %k1 positions %p, %p scale 0.5 {causal, dist.sharding = #own} : (tensor<2x2x7x8xf32>, tensor<2x2x7x8xf32>, tensor<2x2x7x8xf32>, tensor<2x7xi64>, tensor<2x7xi64>) -> tensor<2x2x7x8xf32>
  return %o : tensor<2x2x7x8xf32>
}

// -----

// The sequence is a product of rows and columns: queries know where they are in it, and the positions
// of the keys are cut as the keys.
// CHECK-LABEL: func.func @product
// CHECK: %[[ROW:.+]] = dist.positions <5 pad 6{"ring"}> : tensor<3xi64>
// CHECK: nn.mul %[[ROW]]
// CHECK: %[[COLUMN:.+]] = dist.positions <3> : tensor<3xi64>
// CHECK: %[[Q:.+]] = nn.reshape %{{.+}} : (tensor<3x3xi64>) -> tensor<9xi64>
// CHECK: %[[ALL:.+]] = nn.iota dim 0 : tensor<15xi64>
// CHECK: %[[ROWS:.+]] = dist.pad %{{.+}} dims [1] : (tensor<1x5x3xi64>) -> tensor<1x6x3xi64>
// CHECK: dist.slice %[[ROWS]] axes ["ring"] dims [1] : (tensor<1x6x3xi64>) -> tensor<1x3x3xi64>
// CHECK: %[[K0:.+]] = nn.select
// CHECK: nn.attention %{{.+}} positions %[[Q]], %[[K0]] scale {{.+}} {causal}
// CHECK: dist.permute
// CHECK: dist.slice %[[ROWS]] axes ["ring"] dims [1] shift 1
// CHECK: %[[K1:.+]] = nn.select
// CHECK: nn.attention %{{.+}} positions %[[Q]], %[[K1]] scale {{.+}} {causal}
#rows = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}, {}]>
#product = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
dist.mesh @mesh = <["ring"=2]>
func.func @product(%x: tensor<1x2x5x3x8xf32> {nn.input = "x", dist.sharding = #rows})
    -> (tensor<1x2x15x8xf32> {nn.output = "o", dist.sharding = #product}) {
  %q = nn.reshape %x {dist.sharding = #product} : (tensor<1x2x5x3x8xf32>) -> tensor<1x2x15x8xf32>
  %k = dist.constrain %q <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #product} : tensor<1x2x15x8xf32>
  %o = nn.attention %q, %k, %k scale 0.5 {causal, dist.sharding = #product} : (tensor<1x2x15x8xf32>, tensor<1x2x15x8xf32>, tensor<1x2x15x8xf32>) -> tensor<1x2x15x8xf32>
  return %o : tensor<1x2x15x8xf32>
}

// -----

// So are positions that the program gives.
// CHECK-LABEL: func.func @own_positions_of_product
// CHECK: dist.slice %{{.+}} axes ["ring"] dims [2] : (tensor<2x1x4x3xi64>) -> tensor<2x1x2x3xi64>
// CHECK: nn.attention
// CHECK: dist.permute
// CHECK: dist.slice %{{.+}} axes ["ring"] dims [2] shift 1
#own_rows = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}, {}]>
#own_product = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>
dist.mesh @mesh = <["ring"=2]>
func.func @own_positions_of_product(
    %x: tensor<2x2x4x3x8xf32> {nn.input = "x", dist.sharding = #own_rows},
    %p: tensor<2x12xi64> {nn.input = "p", dist.sharding = #dist.sharding<@mesh, [{}, {}]>})
    -> (tensor<2x2x12x8xf32> {nn.output = "o", dist.sharding = #own_product}) {
  %q = nn.reshape %x {dist.sharding = #own_product} : (tensor<2x2x4x3x8xf32>) -> tensor<2x2x12x8xf32>
  %k = dist.constrain %q <@mesh, [{}, {}, {"ring"}, {}]> {dist.sharding = #own_product} : tensor<2x2x12x8xf32>
  %o = nn.attention %q, %k, %k positions %p, %p scale 0.5 {causal, dist.sharding = #own_product} : (tensor<2x2x12x8xf32>, tensor<2x2x12x8xf32>, tensor<2x2x12x8xf32>, tensor<2x12xi64>, tensor<2x12xi64>) -> tensor<2x2x12x8xf32>
  return %o : tensor<2x2x12x8xf32>
}
