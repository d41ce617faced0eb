// RUN: sharding-opt %s --split-input-file --annotate-context-parallel="ring=auto" | FileCheck %s
// RUN: sharding-opt %s --split-input-file --annotate-context-parallel="ring=auto order=zigzag" | FileCheck %s --check-prefix=GIVEN

// The order of the ring's axis holds, whatever the mask asks for. An option wins over it.

// CHECK-LABEL: func.func @contiguous
// CHECK: nn.attention {{.*}}[{}, {}, {"sp"}, {}]
// GIVEN-LABEL: func.func @contiguous
// GIVEN: nn.attention {{.*}}[{}, {}, (8 zigzag 2{"sp"}), {}]
dist.mesh @mesh = <["sp"=2 {roles = [ring], order = contiguous}]>
func.func @contiguous(%q: tensor<1x2x8x16xf32> {nn.input = "q"}) -> (tensor<1x2x8x16xf32> {nn.output = "o"}) {
  %0 = nn.add %q, %q : (tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) -> tensor<1x2x8x16xf32>
  %o = nn.attention %0, %0, %0 scale 0.25 {causal} : (tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) -> tensor<1x2x8x16xf32>
  return %o : tensor<1x2x8x16xf32>
}

// -----

// CHECK-LABEL: func.func @striped
// CHECK: nn.attention {{.*}}[{}, {}, (8 striped 2{"sp"}), {}]
dist.mesh @mesh = <["sp"=2 {roles = [ring], order = striped}]>
func.func @striped(%q: tensor<1x2x8x16xf32> {nn.input = "q"}) -> (tensor<1x2x8x16xf32> {nn.output = "o"}) {
  %0 = nn.add %q, %q : (tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) -> tensor<1x2x8x16xf32>
  %o = nn.attention %0, %0, %0 scale 0.25 {causal} : (tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) -> tensor<1x2x8x16xf32>
  return %o : tensor<1x2x8x16xf32>
}

// -----

// Where no pass has chosen an order, the mask decides.

// CHECK-LABEL: func.func @by_the_mask
// CHECK: nn.attention {{.*}}[{}, {}, (8 zigzag 2{"sp"}), {}]
dist.mesh @mesh = <["sp"=2 {roles = [ring]}]>
func.func @by_the_mask(%q: tensor<1x2x8x16xf32> {nn.input = "q"}) -> (tensor<1x2x8x16xf32> {nn.output = "o"}) {
  %0 = nn.add %q, %q : (tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) -> tensor<1x2x8x16xf32>
  %o = nn.attention %0, %0, %0 scale 0.25 {causal} : (tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>, tensor<1x2x8x16xf32>) -> tensor<1x2x8x16xf32>
  return %o : tensor<1x2x8x16xf32>
}
