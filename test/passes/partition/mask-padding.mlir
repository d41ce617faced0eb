// RUN: sharding-opt %s --propagate-shardings --partition --verify-placement --split-input-file | FileCheck %s
// RUN: sharding-opt %s --propagate-shardings --partition --canonicalize --cse --verify-placement --split-input-file -o /dev/null

// The logarithm of the padding is minus infinity, and zero times it is NaN. One value tells where
// padding is.
// CHECK-LABEL: func.func @logarithm
// CHECK: %[[L:.*]] = nn.log
// CHECK: %[[P:.*]] = dist.positions <10 pad 12{"tp"}> : tensor<3xi64>
// CHECK: %[[T:.*]] = nn.compare ge %[[P]], %{{.*}} : (tensor<3xi64>, tensor<i64>) -> tensor<3xi1>
// CHECK: %[[M:.*]] = nn.select %[[T]], %[[L]], %{{.*}} -> tensor<2x3xf32>
// CHECK: nn.linear %[[M]]
dist.mesh @mesh = <["tp"=4]>
func.func @logarithm(%x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
                     %a: tensor<10x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                     %p: tensor<10xf32> {nn.parameter = "p", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>},
                     %o: tensor<8x10xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<10x8xf32>) -> tensor<2x10xf32>
  %s = nn.mul %u, %u : (tensor<2x10xf32>, tensor<2x10xf32>) -> tensor<2x10xf32>
  %q = nn.add %s, %p : (tensor<2x10xf32>, tensor<10xf32>) -> tensor<2x10xf32>
  %l = nn.log %q : tensor<2x10xf32>
  %y = nn.linear %l, %o : (tensor<2x10xf32>, tensor<8x10xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// An infinite hidden state makes each true feature infinite or NaN, so NaN in padding changes no
// result.
// CHECK-LABEL: func.func @gated
// CHECK-NOT: dist.positions
// CHECK: return
dist.mesh @mesh = <["tp"=4]>
func.func @gated(%x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
                 %a: tensor<10x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                 %b: tensor<10x8xf32> {nn.parameter = "b", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                 %o: tensor<8x10xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<10x8xf32>) -> tensor<2x10xf32>
  %v = nn.linear %x, %b : (tensor<2x8xf32>, tensor<10x8xf32>) -> tensor<2x10xf32>
  %g = nn.silu %u : tensor<2x10xf32>
  %h = nn.mul %g, %v : (tensor<2x10xf32>, tensor<2x10xf32>) -> tensor<2x10xf32>
  %y = nn.linear %h, %o : (tensor<2x10xf32>, tensor<8x10xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// One infinite hidden state makes both branches of a selection infinite or NaN.
// CHECK-LABEL: func.func @leaky
// CHECK-NOT: dist.positions
// CHECK: return
dist.mesh @mesh = <["tp"=4]>
func.func @leaky(%x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
                 %a: tensor<10x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                 %o: tensor<8x10xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) {
  %zero = nn.constant dense<0.0> : tensor<f32>
  %slope = nn.constant dense<0.01> : tensor<f32>
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<10x8xf32>) -> tensor<2x10xf32>
  %c = nn.compare gt %u, %zero : (tensor<2x10xf32>, tensor<f32>) -> tensor<2x10xi1>
  %l = nn.mul %u, %slope : (tensor<2x10xf32>, tensor<f32>) -> tensor<2x10xf32>
  %s = nn.select %c, %u, %l : (tensor<2x10xi1>, tensor<2x10xf32>, tensor<2x10xf32>) -> tensor<2x10xf32>
  %y = nn.linear %s, %o : (tensor<2x10xf32>, tensor<8x10xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// A selection of an infinite value or of a finite one may leave all true features finite.
// CHECK-LABEL: func.func @choice
// CHECK: dist.positions <10 pad 12{"tp"}>
dist.mesh @mesh = <["tp"=4]>
func.func @choice(%x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
                 %v: tensor<2x8xf32> {nn.input = "v", dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
                 %a: tensor<10x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                 %o: tensor<8x10xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<10x8xf32>) -> tensor<2x10xf32>
  %w = nn.linear %v, %a : (tensor<2x8xf32>, tensor<10x8xf32>) -> tensor<2x10xf32>
  %c = nn.compare gt %u, %w : (tensor<2x10xf32>, tensor<2x10xf32>) -> tensor<2x10xi1>
  %s = nn.select %c, %u, %w : (tensor<2x10xi1>, tensor<2x10xf32>, tensor<2x10xf32>) -> tensor<2x10xf32>
  %y = nn.linear %s, %o : (tensor<2x10xf32>, tensor<8x10xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// A feature over its size, which a maximum keeps away from zero, is zero in padding as well.
// CHECK-LABEL: func.func @over_size
// CHECK-NOT: dist.positions
// CHECK: return
dist.mesh @mesh = <["tp"=4]>
func.func @over_size(%x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
                 %a: tensor<10x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                 %o: tensor<8x10xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<10x8xf32>) -> tensor<2x10xf32>
  %s = nn.mul %u, %u : (tensor<2x10xf32>, tensor<2x10xf32>) -> tensor<2x10xf32>
  %r = nn.sqrt %s : tensor<2x10xf32>
  %k = nn.constant dense<0.001> : tensor<f32>
  %c = nn.maximum %r, %k : (tensor<2x10xf32>, tensor<f32>) -> tensor<2x10xf32>
  %h = nn.div %u, %c : (tensor<2x10xf32>, tensor<2x10xf32>) -> tensor<2x10xf32>
  %y = nn.linear %h, %o : (tensor<2x10xf32>, tensor<8x10xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// A parameter with an entry that is not finite.
// CHECK-LABEL: func.func @infinite_parameter
// CHECK: dist.positions <10 pad 12{"tp"}>
dist.mesh @mesh = <["tp"=4]>
func.func @infinite_parameter(%x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
                 %a: tensor<10x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                 %b: tensor<2x1xf32> {nn.parameter = "b", nn.magnitude = 0x7FF0000000000000 : f64, dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
                 %o: tensor<8x10xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<10x8xf32>) -> tensor<2x10xf32>
  %m = nn.mul %u, %b : (tensor<2x10xf32>, tensor<2x1xf32>) -> tensor<2x10xf32>
  %h = nn.sigmoid %m : tensor<2x10xf32>
  %y = nn.linear %h, %o : (tensor<2x10xf32>, tensor<8x10xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// A reshape of one truth value could give it either dimension. The one of the value is meant, and
// masked once.
// CHECK-LABEL: func.func @one_row_a_rank
// CHECK: %[[V:.*]] = nn.take_along
// CHECK: %[[T:.*]] = nn.reshape %{{.*}} : (tensor<1xi1>) -> tensor<1x1xi1>
// CHECK: %[[M:.*]] = nn.select %[[T]], %[[V]]
// CHECK: nn.reduce sum %[[M]]
dist.mesh @mesh = <["x"=7]>
func.func @one_row_a_rank(%a: tensor<6x9xf32> {nn.input = "a", dist.sharding = #dist.sharding<@mesh, [{"x"}, {}]>},
                 %i: tensor<6x1xi32> {nn.input = "i", dist.sharding = #dist.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<1x1xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) {
  %e = nn.exp %a : tensor<6x9xf32>
  %v = nn.take_along %e, %i dim 1 : (tensor<6x9xf32>, tensor<6x1xi32>) -> tensor<6x1xf32>
  %r = nn.reduce sum %v dims [0, 1] {keep_dims} : (tensor<6x1xf32>) -> tensor<1x1xf32>
  return %r : tensor<1x1xf32>
}

// -----

// Elements of a constant are equal in the padding, too, so its sum masks them. The layout that
// the sum asks for tells which are padding.
// CHECK-LABEL: func.func @sum_of_equal_elements
// CHECK: %[[C:.*]] = nn.constant dense<2.500000e-01> : tensor<1xf32>
// CHECK: %[[P:.*]] = dist.positions <4 pad 6{"x"}> : tensor<1xi64>
// CHECK: %[[T:.*]] = nn.compare ge %[[P]]
// CHECK: %[[M:.*]] = nn.select %[[T]], %{{.*}}, %{{.*}} : (tensor<1xi1>, tensor<1xf32>, tensor<f32>) -> tensor<1xf32>
// CHECK: nn.reduce sum %[[M]] dims [0] {dist.operands = [#dist.sharding<@mesh, [(4 pad 6{"x"})]>]} : (tensor<1xf32>) -> tensor<f32>
dist.mesh @mesh = <["x"=6]>
func.func @sum_of_equal_elements()
    -> (tensor<4xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"x"}]>},
        tensor<f32> {nn.output = "z", dist.sharding = #dist.sharding<@mesh, []>}) {
  %c = nn.constant {dist.sharding = #dist.sharding<@mesh, [{"x"}]>} dense<0.25> : tensor<4xf32>
  %e = nn.exp %c : tensor<4xf32>
  %s = nn.reduce sum %e dims [0] : (tensor<4xf32>) -> tensor<f32>
  return %c, %s : tensor<4xf32>, tensor<f32>
}

// -----

// The schedule computes a loss by exponentials and logarithms, which intervals do not bound. So zero
// weights do not make zeros of the losses of padding.
// CHECK-LABEL: func.func @weighted_losses
// CHECK: %[[L:.*]] = nn.cross_entropy
// CHECK: %[[W:.*]] = nn.mul %[[L]], %{{.*}}
// CHECK: %[[T:.*]] = nn.compare ge
// CHECK: %[[M:.*]] = nn.select %[[T]], %[[W]], %{{.*}} : (tensor<2xi1>, tensor<2xf32>, tensor<f32>) -> tensor<2xf32>
// CHECK: nn.reduce sum %[[M]]
dist.mesh @mesh = <["dp"=2]>
func.func @weighted_losses(%h: tensor<3x8xf32> {nn.parameter = "h", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>},
                           %y: tensor<3xi64> {nn.input = "y", dist.sharding = #dist.sharding<@mesh, [{"dp"}]>},
                           %w: tensor<3xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{"dp"}]>})
    -> (tensor<f32> {nn.output = "loss", dist.sharding = #dist.sharding<@mesh, []>}) {
  %l = nn.cross_entropy %h, %y dim 1 : (tensor<3x8xf32>, tensor<3xi64>) -> tensor<3xf32>
  %m = nn.mul %l, %w : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  %s = nn.reduce sum %m dims [0] : (tensor<3xf32>) -> tensor<f32>
  return %s : tensor<f32>
}

// -----

// Each rank of tp has one of two equal halves of the rows. While they are masked, the half may be a
// dimension of its own or a part of the last one.
// CHECK-LABEL: func.func @halves
// CHECK: %[[F:.*]] = nn.reshape %{{.*}} : (tensor<6x1x2xf32>) -> tensor<6x2xf32>
// The reshape states the factors, so that it does not fold into the one before.
// CHECK: %[[S:.*]] = nn.reshape %[[F]] {dist.results = [#dist.sharding<@mesh, [{?}, (2{"tp"}), (5 pad 8{"dp"})]>]} : (tensor<6x2xf32>) -> tensor<6x1x2xf32>
// CHECK: %[[M:.*]] = nn.select %{{.*}}, %[[S]], %{{.*}} -> tensor<6x1x2xf32>
// CHECK: %[[R:.*]] = nn.reshape %[[M]] : (tensor<6x1x2xf32>) -> tensor<6x2xf32>
// CHECK: nn.linear %[[R]]
dist.mesh @mesh = <["dp"=4, "tp"=2]>
func.func @halves(%x: tensor<6x5xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"dp"}]>},
                  %w: tensor<3x10xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, (2{"tp"}, 5 pad 8{"dp"})]>})
    -> (tensor<6x3xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) {
  %m = nn.reduce max %x dims [0] {keep_dims} : (tensor<6x5xf32>) -> tensor<1x5xf32>
  %d = nn.sub %x, %m : (tensor<6x5xf32>, tensor<1x5xf32>) -> tensor<6x5xf32>
  %l = nn.log %d : tensor<6x5xf32>
  %r = nn.reshape %l : (tensor<6x5xf32>) -> tensor<6x1x5xf32>
  %b = nn.broadcast %r {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {"dp"}]>} : (tensor<6x1x5xf32>) -> tensor<6x2x5xf32>
  %f = nn.reshape %b : (tensor<6x2x5xf32>) -> tensor<6x10xf32>
  %y = nn.linear %f, %w : (tensor<6x10xf32>, tensor<3x10xf32>) -> tensor<6x3xf32>
  return %y : tensor<6x3xf32>
}
