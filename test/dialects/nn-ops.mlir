// RUN: sharding-opt %s --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s | sharding-opt | FileCheck %s
// RUN: sharding-opt %s --emit-bytecode | sharding-opt | FileCheck %s
// RUN: sharding-opt %s --mlir-print-op-generic | sharding-opt | FileCheck %s

// CHECK-LABEL: func.func @unary
// CHECK-SAME: [[X:%.+]]: tensor<2x7xf32>, [[C:%.+]]: tensor<2x7xi1>
func.func @unary(%x: tensor<2x7xf32>, %c: tensor<2x7xi1>) {
  // CHECK: nn.neg [[X]] : tensor<2x7xf32>
  %0 = nn.neg %x : tensor<2x7xf32>
  // CHECK: nn.abs [[X]] : tensor<2x7xf32>
  %1 = nn.abs %x : tensor<2x7xf32>
  // CHECK: nn.exp [[X]] : tensor<2x7xf32>
  %2 = nn.exp %x : tensor<2x7xf32>
  // CHECK: nn.log [[X]] : tensor<2x7xf32>
  %3 = nn.log %x : tensor<2x7xf32>
  // CHECK: nn.sqrt [[X]] : tensor<2x7xf32>
  %4 = nn.sqrt %x : tensor<2x7xf32>
  // CHECK: nn.rsqrt [[X]] : tensor<2x7xf32>
  %5 = nn.rsqrt %x : tensor<2x7xf32>
  // CHECK: nn.reciprocal [[X]] : tensor<2x7xf32>
  %6 = nn.reciprocal %x : tensor<2x7xf32>
  // CHECK: nn.sin [[X]] : tensor<2x7xf32>
  %7 = nn.sin %x : tensor<2x7xf32>
  // CHECK: nn.cos [[X]] : tensor<2x7xf32>
  %8 = nn.cos %x : tensor<2x7xf32>
  // CHECK: nn.erf [[X]] : tensor<2x7xf32>
  %9 = nn.erf %x : tensor<2x7xf32>
  // CHECK: nn.floor [[X]] : tensor<2x7xf32>
  %10 = nn.floor %x : tensor<2x7xf32>
  // CHECK: nn.not [[C]] : tensor<2x7xi1>
  %11 = nn.not %c : tensor<2x7xi1>
  // CHECK: nn.relu [[X]] : tensor<2x7xf32>
  %12 = nn.relu %x : tensor<2x7xf32>
  // CHECK: nn.silu [[X]] : tensor<2x7xf32>
  %13 = nn.silu %x : tensor<2x7xf32>
  // CHECK: nn.tanh [[X]] : tensor<2x7xf32>
  %14 = nn.tanh %x : tensor<2x7xf32>
  // CHECK: nn.sigmoid [[X]] : tensor<2x7xf32>
  %15 = nn.sigmoid %x : tensor<2x7xf32>
  // CHECK: nn.gelu [[X]] : tensor<2x7xf32>
  %16 = nn.gelu %x : tensor<2x7xf32>
  // CHECK: nn.gelu [[X]] {approximate_tanh} : tensor<2x7xf32>
  %17 = nn.gelu %x {approximate_tanh} : tensor<2x7xf32>
  return
}

// CHECK-LABEL: func.func @binary
// CHECK-SAME: [[X:%.+]]: tensor<2x7xbf16>, [[R:%.+]]: tensor<7xbf16>, [[C:%.+]]: tensor<2x1xi1>, [[N:%.+]]: tensor<i64>
func.func @binary(%x: tensor<2x7xbf16>, %r: tensor<7xbf16>, %c: tensor<2x1xi1>, %n: tensor<i64>) {
  // CHECK: nn.add [[X]], [[R]] : (tensor<2x7xbf16>, tensor<7xbf16>) -> tensor<2x7xbf16>
  %0 = nn.add %x, %r : (tensor<2x7xbf16>, tensor<7xbf16>) -> tensor<2x7xbf16>
  // CHECK: nn.sub [[R]], [[X]] :
  %1 = nn.sub %r, %x : (tensor<7xbf16>, tensor<2x7xbf16>) -> tensor<2x7xbf16>
  // CHECK: nn.mul [[X]], [[X]] :
  %2 = nn.mul %x, %x : (tensor<2x7xbf16>, tensor<2x7xbf16>) -> tensor<2x7xbf16>
  // CHECK: nn.div [[N]], [[N]] : (tensor<i64>, tensor<i64>) -> tensor<i64>
  %3 = nn.div %n, %n : (tensor<i64>, tensor<i64>) -> tensor<i64>
  // CHECK: nn.rem [[N]], [[N]] :
  %4 = nn.rem %n, %n : (tensor<i64>, tensor<i64>) -> tensor<i64>
  // CHECK: nn.pow [[X]], [[R]] :
  %5 = nn.pow %x, %r : (tensor<2x7xbf16>, tensor<7xbf16>) -> tensor<2x7xbf16>
  // CHECK: nn.maximum [[X]], [[R]] :
  %6 = nn.maximum %x, %r : (tensor<2x7xbf16>, tensor<7xbf16>) -> tensor<2x7xbf16>
  // CHECK: nn.minimum [[X]], [[R]] :
  %7 = nn.minimum %x, %r : (tensor<2x7xbf16>, tensor<7xbf16>) -> tensor<2x7xbf16>
  // CHECK: nn.and [[C]], [[C]] :
  %8 = nn.and %c, %c : (tensor<2x1xi1>, tensor<2x1xi1>) -> tensor<2x1xi1>
  // CHECK: nn.or [[C]], [[C]] :
  %9 = nn.or %c, %c : (tensor<2x1xi1>, tensor<2x1xi1>) -> tensor<2x1xi1>
  // CHECK: nn.xor [[C]], [[C]] :
  %10 = nn.xor %c, %c : (tensor<2x1xi1>, tensor<2x1xi1>) -> tensor<2x1xi1>
  // CHECK: nn.xor [[N]], [[N]] : (tensor<i64>, tensor<i64>) -> tensor<i64>
  %xor = nn.xor %n, %n : (tensor<i64>, tensor<i64>) -> tensor<i64>
  // CHECK: nn.compare eq [[X]], [[R]] : (tensor<2x7xbf16>, tensor<7xbf16>) -> tensor<2x7xi1>
  %11 = nn.compare eq %x, %r : (tensor<2x7xbf16>, tensor<7xbf16>) -> tensor<2x7xi1>
  // CHECK: nn.compare ne [[N]], [[N]]
  %12 = nn.compare ne %n, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
  // CHECK: nn.compare lt [[N]], [[N]]
  %13 = nn.compare lt %n, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
  // CHECK: nn.compare le [[N]], [[N]]
  %14 = nn.compare le %n, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
  // CHECK: nn.compare gt [[N]], [[N]]
  %15 = nn.compare gt %n, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
  // CHECK: nn.compare ge [[N]], [[N]]
  %16 = nn.compare ge %n, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
  // CHECK: nn.select [[C]], [[X]], [[R]] : (tensor<2x1xi1>, tensor<2x7xbf16>, tensor<7xbf16>) -> tensor<2x7xbf16>
  %17 = nn.select %c, %x, %r : (tensor<2x1xi1>, tensor<2x7xbf16>, tensor<7xbf16>) -> tensor<2x7xbf16>
  // CHECK: nn.cast [[X]] : (tensor<2x7xbf16>) -> tensor<2x7xf16>
  %18 = nn.cast %x : (tensor<2x7xbf16>) -> tensor<2x7xf16>
  return
}

// CHECK-LABEL: func.func @shapes
// CHECK-SAME: [[X:%.+]]: tensor<2x7x72xf32>, [[I:%.+]]: tensor<3x5xi32>, [[J:%.+]]: tensor<2x4x72xi64>
func.func @shapes(%x: tensor<2x7x72xf32>, %i: tensor<3x5xi32>, %j: tensor<2x4x72xi64>) {
  // CHECK: nn.constant dense<[1, 2]> : tensor<2xi64>
  %0 = nn.constant dense<[1, 2]> : tensor<2xi64>
  // CHECK: nn.constant {nn.id = 3 : i64} dense<0.000000e+00> : tensor<f16>
  %1 = nn.constant {nn.id = 3 : i64} dense<0.0> : tensor<f16>
  // CHECK: nn.constant dense<true> : tensor<1x1xi1>
  %2 = nn.constant dense<true> : tensor<1x1xi1>
  // CHECK: nn.iota dim 1 : tensor<2x7xi64>
  %3 = nn.iota dim 1 : tensor<2x7xi64>
  // CHECK: nn.reshape [[X]] : (tensor<2x7x72xf32>) -> tensor<2x7x6x12xf32>
  %4 = nn.reshape %x : (tensor<2x7x72xf32>) -> tensor<2x7x6x12xf32>
  // CHECK: nn.transpose [[X]] [0, 2, 1] : (tensor<2x7x72xf32>) -> tensor<2x72x7xf32>
  %5 = nn.transpose %x [0, 2, 1] : (tensor<2x7x72xf32>) -> tensor<2x72x7xf32>
  // CHECK: nn.slice [[X]] starts [0, 1, 0] limits [2, 7, 72] strides [1, 4, 5] : (tensor<2x7x72xf32>) -> tensor<2x2x15xf32>
  %6 = nn.slice %x starts [0, 1, 0] limits [2, 7, 72] strides [1, 4, 5] : (tensor<2x7x72xf32>) -> tensor<2x2x15xf32>
  // CHECK: nn.concat [[X]], [[X]] dim 1 : (tensor<2x7x72xf32>, tensor<2x7x72xf32>) -> tensor<2x14x72xf32>
  %7 = nn.concat %x, %x dim 1 : (tensor<2x7x72xf32>, tensor<2x7x72xf32>) -> tensor<2x14x72xf32>
  // CHECK: nn.broadcast {{%.+}} : (tensor<1x1xi1>) -> tensor<3x2x7xi1>
  %8 = nn.broadcast %2 : (tensor<1x1xi1>) -> tensor<3x2x7xi1>
  // CHECK: nn.gather [[X]], [[I]] dim 1 : (tensor<2x7x72xf32>, tensor<3x5xi32>) -> tensor<2x3x5x72xf32>
  %9 = nn.gather %x, %i dim 1 : (tensor<2x7x72xf32>, tensor<3x5xi32>) -> tensor<2x3x5x72xf32>
  // CHECK: nn.take_along [[X]], [[J]] dim 1 : (tensor<2x7x72xf32>, tensor<2x4x72xi64>) -> tensor<2x4x72xf32>
  %10 = nn.take_along %x, %j dim 1 : (tensor<2x7x72xf32>, tensor<2x4x72xi64>) -> tensor<2x4x72xf32>
  // CHECK: nn.index_copy [[X]], {{%.+}}, {{%.+}} dim 1 : (tensor<2x7x72xf32>, tensor<2xi64>, tensor<2x2x72xf32>) -> tensor<2x7x72xf32>
  %11 = nn.slice %x starts [0, 0, 0] limits [2, 2, 72] strides [1, 1, 1] : (tensor<2x7x72xf32>) -> tensor<2x2x72xf32>
  %12 = nn.index_copy %x, %0, %11 dim 1 : (tensor<2x7x72xf32>, tensor<2xi64>, tensor<2x2x72xf32>) -> tensor<2x7x72xf32>
  return
}

// CHECK-LABEL: func.func @reductions
// CHECK-SAME: [[X:%.+]]: tensor<2x7x72xf32>
func.func @reductions(%x: tensor<2x7x72xf32>) {
  // CHECK: nn.reduce sum [[X]] dims [1] : (tensor<2x7x72xf32>) -> tensor<2x72xf32>
  %0 = nn.reduce sum %x dims [1] : (tensor<2x7x72xf32>) -> tensor<2x72xf32>
  // CHECK: nn.reduce mean [[X]] dims [2] {keep_dims} : (tensor<2x7x72xf32>) -> tensor<2x7x1xf32>
  %1 = nn.reduce mean %x dims [2] {keep_dims} : (tensor<2x7x72xf32>) -> tensor<2x7x1xf32>
  // CHECK: nn.reduce max [[X]] dims [0, 2] : (tensor<2x7x72xf32>) -> tensor<7xf32>
  %2 = nn.reduce max %x dims [0, 2] : (tensor<2x7x72xf32>) -> tensor<7xf32>
  // CHECK: nn.reduce min [[X]] dims [] : (tensor<2x7x72xf32>) -> tensor<2x7x72xf32>
  %3 = nn.reduce min %x dims [] : (tensor<2x7x72xf32>) -> tensor<2x7x72xf32>
  // CHECK: nn.cumsum [[X]] dim 2 : tensor<2x7x72xf32>
  %4 = nn.cumsum %x dim 2 : tensor<2x7x72xf32>
  // CHECK: nn.softmax [[X]] dim 2 : tensor<2x7x72xf32>
  %5 = nn.softmax %x dim 2 : tensor<2x7x72xf32>
  %y = nn.constant dense<1> : tensor<2x7xi64>
  // CHECK: nn.cross_entropy [[X]], %{{.*}} dim 2 : (tensor<2x7x72xf32>, tensor<2x7xi64>) -> tensor<2x7xf32>
  %6 = nn.cross_entropy %x, %y dim 2 : (tensor<2x7x72xf32>, tensor<2x7xi64>) -> tensor<2x7xf32>
  // CHECK: nn.cross_entropy [[X]], %{{.*}} dim 2 {ignore_index = 3 : i64, label_smoothing = 5.000000e-01 : f64}
  %7 = nn.cross_entropy %x, %y dim 2 {ignore_index = 3 : i64, label_smoothing = 5.000000e-01 : f64} : (tensor<2x7x72xf32>, tensor<2x7xi64>) -> tensor<2x7xf32>
  return
}

// CHECK-LABEL: func.func @layers
// CHECK-SAME: [[X:%.+]]: tensor<2x7x8xf32>, [[W:%.+]]: tensor<16x8xf32>, [[B:%.+]]: tensor<16xf32>
// CHECK-SAME: [[V:%.+]]: tensor<8xf32>
func.func @layers(%x: tensor<2x7x8xf32>, %w: tensor<16x8xf32>, %b: tensor<16xf32>,
                  %v: tensor<8xf32>, %cos: tensor<7x4xf32>, %ids: tensor<2x7xi64>, %o: tensor<i64>) {
  // CHECK: nn.matmul [[X]], [[W]] {transpose_rhs} : (tensor<2x7x8xf32>, tensor<16x8xf32>) -> tensor<2x7x16xf32>
  %0 = nn.matmul %x, %w {transpose_rhs} : (tensor<2x7x8xf32>, tensor<16x8xf32>) -> tensor<2x7x16xf32>
  // CHECK: nn.matmul [[X]], [[X]] {transpose_lhs} : (tensor<2x7x8xf32>, tensor<2x7x8xf32>) -> tensor<2x8x8xf32>
  %1 = nn.matmul %x, %x {transpose_lhs} : (tensor<2x7x8xf32>, tensor<2x7x8xf32>) -> tensor<2x8x8xf32>
  // CHECK: nn.linear [[X]], [[W]] : (tensor<2x7x8xf32>, tensor<16x8xf32>) -> tensor<2x7x16xf32>
  %2 = nn.linear %x, %w : (tensor<2x7x8xf32>, tensor<16x8xf32>) -> tensor<2x7x16xf32>
  // CHECK: [[Y:%.+]] = nn.linear [[X]], [[W]] bias [[B]] : (tensor<2x7x8xf32>, tensor<16x8xf32>, tensor<16xf32>) -> tensor<2x7x16xf32>
  %3 = nn.linear %x, %w bias %b : (tensor<2x7x8xf32>, tensor<16x8xf32>, tensor<16xf32>) -> tensor<2x7x16xf32>
  // CHECK: nn.linear [[Y]], [[W]] {in_out} : (tensor<2x7x16xf32>, tensor<16x8xf32>) -> tensor<2x7x8xf32>
  %4 = nn.linear %3, %w {in_out} : (tensor<2x7x16xf32>, tensor<16x8xf32>) -> tensor<2x7x8xf32>
  // CHECK: nn.embedding {{%.+}}, [[W]] : (tensor<2x7xi64>, tensor<16x8xf32>) -> tensor<2x7x8xf32>
  %5 = nn.embedding %ids, %w : (tensor<2x7xi64>, tensor<16x8xf32>) -> tensor<2x7x8xf32>
  // CHECK: nn.embedding {{%.+}}, [[W]] offset {{%.+}} : (tensor<2x7xi64>, tensor<16x8xf32>, tensor<i64>) -> tensor<2x7x8xf32>
  %6 = nn.embedding %ids, %w offset %o : (tensor<2x7xi64>, tensor<16x8xf32>, tensor<i64>) -> tensor<2x7x8xf32>
  // CHECK: nn.rms_norm [[X]] eps 9.9999999999999995E-7 : (tensor<2x7x8xf32>) -> tensor<2x7x8xf32>
  %7 = nn.rms_norm %x eps 1.0e-6 : (tensor<2x7x8xf32>) -> tensor<2x7x8xf32>
  // CHECK: nn.rms_norm [[X]] weight [[V]] eps 0.000000e+00 {unit_offset} : (tensor<2x7x8xf32>, tensor<8xf32>) -> tensor<2x7x8xf32>
  %8 = nn.rms_norm %x weight %v eps 0.0 {unit_offset} : (tensor<2x7x8xf32>, tensor<8xf32>) -> tensor<2x7x8xf32>
  // CHECK: nn.layer_norm [[X]] eps 0.000000e+00 : (tensor<2x7x8xf32>) -> tensor<2x7x8xf32>
  %9 = nn.layer_norm %x eps 0.0 : (tensor<2x7x8xf32>) -> tensor<2x7x8xf32>
  // CHECK: nn.layer_norm [[X]] weight [[V]] bias [[V]] eps 0.000000e+00 : (tensor<2x7x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<2x7x8xf32>
  %10 = nn.layer_norm %x weight %v bias %v eps 0.0 : (tensor<2x7x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<2x7x8xf32>
  // CHECK: nn.layer_norm [[X]] bias [[V]] eps 0.000000e+00 : (tensor<2x7x8xf32>, tensor<8xf32>) -> tensor<2x7x8xf32>
  %11 = nn.layer_norm %x bias %v eps 0.0 : (tensor<2x7x8xf32>, tensor<8xf32>) -> tensor<2x7x8xf32>
  // CHECK: nn.rotary [[X]], {{%.+}}, {{%.+}} : (tensor<2x7x8xf32>, tensor<7x4xf32>, tensor<7x4xf32>) -> tensor<2x7x8xf32>
  %12 = nn.rotary %x, %cos, %cos : (tensor<2x7x8xf32>, tensor<7x4xf32>, tensor<7x4xf32>) -> tensor<2x7x8xf32>
  // CHECK: nn.rotary [[X]], {{%.+}}, {{%.+}} {interleaved} :
  %13 = nn.rotary %x, %cos, %cos {interleaved} : (tensor<2x7x8xf32>, tensor<7x4xf32>, tensor<7x4xf32>) -> tensor<2x7x8xf32>
  return
}

// CHECK-LABEL: func.func @attention
// CHECK-SAME: [[Q:%.+]]: tensor<1x4x7x16xf32>, [[K:%.+]]: tensor<1x2x9x16xf32>, [[V:%.+]]: tensor<1x2x9x8xf32>
// CHECK-SAME: [[M:%.+]]: tensor<1x9xi1>, [[B:%.+]]: tensor<4x1x9xf32>, [[QP:%.+]]: tensor<7xi64>, [[KP:%.+]]: tensor<9xi64>, [[KR:%.+]]: tensor<1x9xi64>, [[N:%.+]]: tensor<1xi64>
func.func @attention(%q: tensor<1x4x7x16xf32>, %k: tensor<1x2x9x16xf32>, %v: tensor<1x2x9x8xf32>,
                     %m: tensor<1x9xi1>, %b: tensor<4x1x9xf32>, %qp: tensor<7xi64>, %kp: tensor<9xi64>,
                     %kr: tensor<1x9xi64>, %n: tensor<1xi64>) {
  // CHECK: nn.attention [[Q]], [[K]], [[V]] scale 2.500000e-01 : (tensor<1x4x7x16xf32>, tensor<1x2x9x16xf32>, tensor<1x2x9x8xf32>) -> tensor<1x4x7x8xf32>
  %0 = nn.attention %q, %k, %v scale 0.25 : (tensor<1x4x7x16xf32>, tensor<1x2x9x16xf32>, tensor<1x2x9x8xf32>) -> tensor<1x4x7x8xf32>
  // CHECK: nn.attention [[Q]], [[K]], [[V]] key_padding [[M]] bias [[B]] scale 2.500000e-01 {causal, kv_length = 8 : i64, soft_cap = 5.000000e+01 : f64, window_left = 3 : i64, window_right = 0 : i64} :
  %1 = nn.attention %q, %k, %v key_padding %m bias %b scale 0.25 {causal, kv_length = 8 : i64, soft_cap = 50.0, window_left = 3 : i64, window_right = 0 : i64} : (tensor<1x4x7x16xf32>, tensor<1x2x9x16xf32>, tensor<1x2x9x8xf32>, tensor<1x9xi1>, tensor<4x1x9xf32>) -> tensor<1x4x7x8xf32>
  // CHECK: nn.attention [[Q]], [[K]], [[V]] bias [[B]] scale 1.000000e+00 :
  %2 = nn.attention %q, %k, %v bias %b scale 1.0 : (tensor<1x4x7x16xf32>, tensor<1x2x9x16xf32>, tensor<1x2x9x8xf32>, tensor<4x1x9xf32>) -> tensor<1x4x7x8xf32>
  // CHECK: nn.attention [[Q]], [[K]], [[V]] positions [[QP]], [[KP]] scale 1.000000e+00 {causal} : {{.*}} -> (tensor<1x4x7x8xf32>, tensor<1x4x7xf32>)
  %3:2 = nn.attention %q, %k, %v positions %qp, %kp scale 1.0 {causal} : (tensor<1x4x7x16xf32>, tensor<1x2x9x16xf32>, tensor<1x2x9x8xf32>, tensor<7xi64>, tensor<9xi64>) -> (tensor<1x4x7x8xf32>, tensor<1x4x7xf32>)
  // CHECK: nn.attention [[Q]], [[K]], [[V]] positions [[QP]], [[KR]] kv_lengths [[N]] scale 1.000000e+00 {causal} :
  %4 = nn.attention %q, %k, %v positions %qp, %kr kv_lengths %n scale 1.0 {causal} : (tensor<1x4x7x16xf32>, tensor<1x2x9x16xf32>, tensor<1x2x9x8xf32>, tensor<7xi64>, tensor<1x9xi64>, tensor<1xi64>) -> tensor<1x4x7x8xf32>
  return
}

// The attributes of the entry.
// CHECK-LABEL: func.func @main
// CHECK-SAME: {nn.input = "x"}
// CHECK-SAME: {nn.aliases = ["b.weight"], nn.parameter = "a.weight", nn.parameter_offsets = array<i64: 4, 0>}
// CHECK-SAME: -> (tensor<2x4xf32> {nn.output = "y"})
func.func @main(%x: tensor<2x8xf32> {nn.input = "x"},
                %w: tensor<4x8xf32> {nn.parameter = "a.weight", nn.aliases = ["b.weight"], nn.parameter_offsets = array<i64: 4, 0>})
    -> (tensor<2x4xf32> {nn.output = "y"}) {
  // CHECK: nn.linear {{.*}} {nn.id = 7 : i64}
  %0 = nn.linear %x, %w {nn.id = 7 : i64} : (tensor<2x8xf32>, tensor<4x8xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// CHECK: nn.state @steps {fill = 0 : i64} : tensor<i64>
nn.state @steps {fill = 0 : i64} : tensor<i64>
// CHECK: nn.state @"norm mean" {parameter = "norm.running_mean"} : tensor<8xf32>
nn.state @"norm mean" {parameter = "norm.running_mean"} : tensor<8xf32>
// CHECK: nn.state @seen : tensor<4xi1>
nn.state @seen : tensor<4xi1>

// CHECK-LABEL: func.func @state
// CHECK-SAME: [[X:%.+]]: tensor<8xf32>
func.func @state(%x: tensor<8xf32>) -> (tensor<i64>, tensor<8xf32>) {
  // CHECK: [[N:%.+]] = nn.read @steps : tensor<i64>
  %0 = nn.read @steps : tensor<i64>
  // CHECK: nn.write @"norm mean", [[X]] : tensor<8xf32>
  nn.write @"norm mean", %x : tensor<8xf32>
  // CHECK: nn.read @"norm mean" : tensor<8xf32>
  %1 = nn.read @"norm mean" : tensor<8xf32>
  return %0, %1 : tensor<i64>, tensor<8xf32>
}

// CHECK-LABEL: func.func @bound_state
// CHECK-SAME: tensor<i64> {nn.state = "steps"}) -> (tensor<i64> {nn.state = "steps"})
func.func @bound_state(%n: tensor<i64> {nn.state = "steps"}) -> (tensor<i64> {nn.state = "steps"}) {
  return %n : tensor<i64>
}
