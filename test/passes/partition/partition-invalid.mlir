// RUN: sharding-opt %s --split-input-file --partition --verify-diagnostics

// expected-error @below {{module has no dist.mesh}}
module {
  func.func @main(%x: tensor<4xf32> {nn.input = "x"}) -> (tensor<4xf32> {nn.output = "y"}) {
    return %x : tensor<4xf32>
  }
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @main(%x: tensor<4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}]>}) -> (tensor<4xf32> {nn.output = "y"}) {
  // expected-error @below {{value has no 'dist.sharding': expected every value to carry one}}
  %y = nn.relu %x : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @main(%x: tensor<4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}]>}) -> (tensor<4xf32> {nn.output = "y"}) {
  // expected-error @below {{has no sharding rule: expected an op of the nn dialect}}
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @main(%x: tensor<4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}]>})
    -> (tensor<4xi1> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = max {"tp"}>}) {
  %y = nn.cast %x {dist.sharding = #dist.sharding<@mesh, [{}]>} : (tensor<4xf32>) -> tensor<4xi1>
  // expected-error @below {{result 0: expected numbers, which have sums and maxima, as it is unreduced, got 'tensor<4xi1>'}}
  return %y : tensor<4xi1>
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @main(%x: tensor<4xf8E4M3FN> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}]>})
    -> (tensor<4xf8E4M3FN> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>}) {
  // expected-error @below {{result 0: expected numbers, which have sums and maxima, as it is unreduced, got 'tensor<4xf8E4M3FN>'}}
  return %x : tensor<4xf8E4M3FN>
}
