// RUN: sharding-opt %s --split-input-file --parallelize="mesh=tp=2 sequence-parallel=on" | FileCheck %s --check-prefix=ON
// RUN: sharding-opt %s --split-input-file --parallelize="mesh=tp=2 sequence-parallel=off" | FileCheck %s --check-prefix=OFF

// A Llama-like layer, the only one. The input comes whole and the result leaves
// whole; between them tokens are sharded.

// ON-LABEL: func.func @main
// ON-NOT: = dist.
// ON: nn.attention
// ON-NOT: = dist.
// ON: dist.reduce_scatter {{.*}}axes ["tp"] dims [1]
// ON: dist.slice %arg0 axes ["tp"] dims [1]
// ON: nn.add {{.*}}tensor<1x8x32xf32>
// ON: nn.rms_norm {{.*}}tensor<1x8x32xf32>
// ON-NEXT: dist.all_gather {{.*}}axes ["tp"] dims [1]
// ON-NOT: = dist.
// ON: nn.mul
// ON-NOT: = dist.
// ON: dist.reduce_scatter {{.*}}axes ["tp"] dims [1]
// ON-NEXT: nn.add {{.*}}tensor<1x8x32xf32>
// ON-NEXT: dist.all_gather {{.*}}axes ["tp"] dims [1]
// ON-NEXT: return

// OFF-LABEL: func.func @main
// OFF-NOT: = dist.
// OFF: nn.attention
// OFF-NOT: = dist.
// OFF: dist.all_reduce {{.*}}axes ["tp"]
// OFF-NEXT: nn.add {{.*}}tensor<1x16x32xf32>
// OFF-NOT: = dist.
// OFF: nn.mul
// OFF-NOT: = dist.
// OFF: dist.all_reduce {{.*}}axes ["tp"]
// OFF-NEXT: nn.add {{.*}}tensor<1x16x32xf32>
// OFF-NEXT: return
func.func @main(%x: tensor<1x16x32xf32> {nn.input = "x"}, %n1: tensor<32xf32> {nn.parameter = "n1"},
                %q: tensor<32x32xf32> {nn.parameter = "q"}, %k: tensor<16x32xf32> {nn.parameter = "k"},
                %v: tensor<16x32xf32> {nn.parameter = "v"}, %o: tensor<32x32xf32> {nn.parameter = "o"},
                %n2: tensor<32xf32> {nn.parameter = "n2"}, %gate: tensor<64x32xf32> {nn.parameter = "gate"},
                %up: tensor<64x32xf32> {nn.parameter = "up"}, %down: tensor<32x64xf32> {nn.parameter = "down"})
    -> (tensor<1x16x32xf32> {nn.output = "y"}) {
  %0 = nn.rms_norm %x weight %n1 eps 1.0e-5 : (tensor<1x16x32xf32>, tensor<32xf32>) -> tensor<1x16x32xf32>
  %1 = nn.linear %0, %q : (tensor<1x16x32xf32>, tensor<32x32xf32>) -> tensor<1x16x32xf32>
  %2 = nn.reshape %1 : (tensor<1x16x32xf32>) -> tensor<1x16x4x8xf32>
  %3 = nn.transpose %2 [0, 2, 1, 3] : (tensor<1x16x4x8xf32>) -> tensor<1x4x16x8xf32>
  %4 = nn.linear %0, %k : (tensor<1x16x32xf32>, tensor<16x32xf32>) -> tensor<1x16x16xf32>
  %5 = nn.reshape %4 : (tensor<1x16x16xf32>) -> tensor<1x16x2x8xf32>
  %6 = nn.transpose %5 [0, 2, 1, 3] : (tensor<1x16x2x8xf32>) -> tensor<1x2x16x8xf32>
  %7 = nn.linear %0, %v : (tensor<1x16x32xf32>, tensor<16x32xf32>) -> tensor<1x16x16xf32>
  %8 = nn.reshape %7 : (tensor<1x16x16xf32>) -> tensor<1x16x2x8xf32>
  %9 = nn.transpose %8 [0, 2, 1, 3] : (tensor<1x16x2x8xf32>) -> tensor<1x2x16x8xf32>
  %10 = nn.attention %3, %6, %9 scale 0.35 {causal} : (tensor<1x4x16x8xf32>, tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>) -> tensor<1x4x16x8xf32>
  %11 = nn.transpose %10 [0, 2, 1, 3] : (tensor<1x4x16x8xf32>) -> tensor<1x16x4x8xf32>
  %12 = nn.reshape %11 : (tensor<1x16x4x8xf32>) -> tensor<1x16x32xf32>
  %13 = nn.linear %12, %o : (tensor<1x16x32xf32>, tensor<32x32xf32>) -> tensor<1x16x32xf32>
  %14 = nn.add %x, %13 : (tensor<1x16x32xf32>, tensor<1x16x32xf32>) -> tensor<1x16x32xf32>
  %15 = nn.rms_norm %14 weight %n2 eps 1.0e-5 : (tensor<1x16x32xf32>, tensor<32xf32>) -> tensor<1x16x32xf32>
  %16 = nn.linear %15, %gate : (tensor<1x16x32xf32>, tensor<64x32xf32>) -> tensor<1x16x64xf32>
  %17 = nn.silu %16 : tensor<1x16x64xf32>
  %18 = nn.linear %15, %up : (tensor<1x16x32xf32>, tensor<64x32xf32>) -> tensor<1x16x64xf32>
  %19 = nn.mul %17, %18 : (tensor<1x16x64xf32>, tensor<1x16x64xf32>) -> tensor<1x16x64xf32>
  %20 = nn.linear %19, %down : (tensor<1x16x64xf32>, tensor<32x64xf32>) -> tensor<1x16x32xf32>
  %21 = nn.add %14, %20 : (tensor<1x16x32xf32>, tensor<1x16x32xf32>) -> tensor<1x16x32xf32>
  return %21 : tensor<1x16x32xf32>
}

// -----

// Two layers: between them the residual stream stays sharded, and is gathered
// once for each.

// ON-LABEL: func.func @main
// ON: dist.reduce_scatter {{.*}}axes ["tp"] dims [1]
// ON: nn.rms_norm {{.*}}tensor<1x3x8xf32>
// ON-NEXT: dist.all_gather {{.*}}axes ["tp"] dims [1]
// ON-NOT: = dist.
// ON: dist.reduce_scatter {{.*}}axes ["tp"] dims [1]
// ON: dist.all_gather
// ON-NOT: = dist.
// ON: return

// OFF-LABEL: func.func @main
// OFF: dist.all_reduce
// OFF-NOT: = dist.
// OFF: nn.relu
// OFF-NOT: = dist.
// OFF: dist.all_reduce
// OFF-NOT: = dist.
// OFF: return
func.func @main(%x: tensor<1x6x8xf32> {nn.input = "x"}, %a: tensor<32x8xf32> {nn.parameter = "a"},
                %b: tensor<8x32xf32> {nn.parameter = "b"}, %c: tensor<32x8xf32> {nn.parameter = "c"},
                %d: tensor<8x32xf32> {nn.parameter = "d"}) -> (tensor<1x6x8xf32> {nn.output = "y"}) {
  %0 = nn.rms_norm %x eps 1.0e-5 : (tensor<1x6x8xf32>) -> tensor<1x6x8xf32>
  %1 = nn.linear %0, %a : (tensor<1x6x8xf32>, tensor<32x8xf32>) -> tensor<1x6x32xf32>
  %2 = nn.relu %1 : tensor<1x6x32xf32>
  %3 = nn.linear %2, %b : (tensor<1x6x32xf32>, tensor<8x32xf32>) -> tensor<1x6x8xf32>
  %4 = nn.add %x, %3 : (tensor<1x6x8xf32>, tensor<1x6x8xf32>) -> tensor<1x6x8xf32>
  %5 = nn.rms_norm %4 eps 1.0e-5 : (tensor<1x6x8xf32>) -> tensor<1x6x8xf32>
  %6 = nn.linear %5, %c : (tensor<1x6x8xf32>, tensor<32x8xf32>) -> tensor<1x6x32xf32>
  %7 = nn.relu %6 : tensor<1x6x32xf32>
  %8 = nn.linear %7, %d : (tensor<1x6x32xf32>, tensor<8x32xf32>) -> tensor<1x6x8xf32>
  %9 = nn.add %4, %8 : (tensor<1x6x8xf32>, tensor<1x6x8xf32>) -> tensor<1x6x8xf32>
  return %9 : tensor<1x6x8xf32>
}
