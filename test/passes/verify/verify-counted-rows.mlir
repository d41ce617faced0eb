// RUN: sharding-opt %s --split-input-file --verify-placement --verify-diagnostics

// Rows go back to the places of another group's numbers.

#own = #dist.sharding<@mesh, [{"tp"}, {}]>
#all = #dist.sharding<@mesh, [{}]>
dist.mesh @mesh = <["tp"=2]>
// expected-note@below {{the rows have up to 4 true rows of groups of 4, whose numbers are here}}
func.func @other_numbers(%x: tensor<4x2xf32> {dist.sharding = #own, dist.global = tensor<8x2xf32>}, %n: tensor<2xi64> {dist.sharding = #all, dist.global = tensor<2xi64>},
// expected-note@below {{their places have up to 4 true rows of groups of 4, whose numbers are here}}
                         %m: tensor<2xi64> {dist.sharding = #all, dist.global = tensor<2xi64>})
    -> (tensor<4x2xf32> {dist.sharding = #own, dist.global = tensor<8x2xf32>}) attributes {dist.spmd = @mesh} {
  %0, %k = dist.all_gather_v %x, %n axes ["tp"] tokens 4 rows 4 dims [0] : (tensor<4x2xf32>, tensor<2xi64>) -> (tensor<4x2xf32>, tensor<2xi64>)
  %1 = nn.relu %0 : tensor<4x2xf32>
  // expected-error@below {{'dist.expand' op expected rows that were compacted by the numbers that it reads, got others in operand 0}}
  %2 = dist.expand %1 counts %m tokens 4 rows 4 dim 0 : (tensor<4x2xf32>, tensor<2xi64>) -> tensor<8x2xf32>
  %3 = dist.slice %2 axes ["tp"] dims [0] : (tensor<8x2xf32>) -> tensor<4x2xf32>
  return %3 : tensor<4x2xf32>
}

// -----

// Rows behind the true ones are summed.

#all = #dist.sharding<@mesh, [{}]>
dist.mesh @mesh = <["tp"=2]>
// expected-note@below {{its rows have up to 4 true rows of groups of 4, whose numbers are here}}
func.func @summed(%x: tensor<8x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x2xf32>}, %n: tensor<2xi64> {dist.sharding = #all, dist.global = tensor<2xi64>})
    -> (tensor<2xf32> {dist.sharding = #all, dist.global = tensor<2xf32>}) attributes {dist.spmd = @mesh} {
  %0 = dist.compact %x counts %n tokens 4 rows 4 dim 0 : (tensor<8x2xf32>, tensor<2xi64>) -> tensor<4x2xf32>
  // expected-error@below {{'nn.reduce' op joins rows of operand 0, of which those behind the true ones would count: expected dist.expand before}}
  %1 = nn.reduce sum %0 dims [0] : (tensor<4x2xf32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}

// -----

// Each rank adds the sum of all.

#all = #dist.sharding<@mesh, [{}]>
#own = #dist.sharding<@mesh, [{"tp"}, {}]>
dist.mesh @mesh = <["tp"=2]>
// expected-note@below {{operand 0 is from here, and has layout [{}, {}]}}
func.func @replicated(%x: tensor<4x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x2xf32>}, %n: tensor<2xi64> {dist.sharding = #all, dist.global = tensor<2xi64>})
    -> (tensor<4x2xf32> {dist.sharding = #own, dist.global = tensor<8x2xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@below {{reduces operand 0 over {"tp"}, over which it is replicated}}
  %0, %k = dist.reduce_scatter_v sum %x, %n axes ["tp"] tokens 4 rows 4 dims [0] : (tensor<4x2xf32>, tensor<2xi64>) -> (tensor<4x2xf32>, tensor<2xi64>)
  return %0 : tensor<4x2xf32>
}

// -----

// Rows that were not compacted go to the places of true ones.

#all = #dist.sharding<@mesh, [{}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
dist.mesh @mesh = <["tp"=2]>
func.func @not_compacted(%x: tensor<8x2xf32> {dist.sharding = #whole, dist.global = tensor<8x2xf32>},
// expected-note@below {{their places have up to 4 true rows of groups of 4, whose numbers are here}}
                         %n: tensor<2xi64> {dist.sharding = #all, dist.global = tensor<2xi64>})
    -> (tensor<8x2xf32> {dist.sharding = #whole, dist.global = tensor<8x2xf32>}) attributes {dist.spmd = @mesh} {
  %0 = nn.slice %x starts [0, 0] limits [4, 2] strides [1, 1] : (tensor<8x2xf32>) -> tensor<4x2xf32>
  // expected-error@below {{'dist.expand' op expected rows that were compacted by the numbers that it reads, got rows in operand 0 that were not compacted}}
  %1 = dist.expand %0 counts %n tokens 4 rows 4 dim 0 : (tensor<4x2xf32>, tensor<2xi64>) -> tensor<8x2xf32>
  return %1 : tensor<8x2xf32>
}

// -----

// The first rows are added to true ones. A row that all rows share is not.

#all = #dist.sharding<@mesh, [{}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
dist.mesh @mesh = <["tp"=2]>
func.func @joined(%x: tensor<8x2xf32> {dist.sharding = #whole, dist.global = tensor<8x2xf32>}, %b: tensor<2xf32> {dist.sharding = #all, dist.global = tensor<2xf32>},
// expected-note@below {{the rows have up to 4 true rows of groups of 4, whose numbers are here}}
                         %n: tensor<2xi64> {dist.sharding = #all, dist.global = tensor<2xi64>})
    -> (tensor<8x2xf32> {dist.sharding = #whole, dist.global = tensor<8x2xf32>}) attributes {dist.spmd = @mesh} {
  %0 = dist.compact %x counts %n tokens 4 rows 4 dim 0 : (tensor<8x2xf32>, tensor<2xi64>) -> tensor<4x2xf32>
  %1 = nn.broadcast %b : (tensor<2xf32>) -> tensor<4x2xf32>
  %2 = nn.add %0, %1 : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  %3 = nn.slice %x starts [0, 0] limits [4, 2] strides [1, 1] : (tensor<8x2xf32>) -> tensor<4x2xf32>
  // expected-error@below {{'nn.add' op joins true rows with operand 1, whose rows were not compacted: expected dist.compact before}}
  %4 = nn.add %2, %3 : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  %5 = dist.expand %4 counts %n tokens 4 rows 4 dim 0 : (tensor<4x2xf32>, tensor<2xi64>) -> tensor<8x2xf32>
  return %5 : tensor<8x2xf32>
}

// -----

// Ranks have some of the true rows each, behind which one is padding.

#all = #dist.sharding<@mesh, [{}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
dist.mesh @mesh = <["tp"=2]>
func.func @scattered(%x: tensor<8x2xf32> {dist.sharding = #whole, dist.global = tensor<8x2xf32>}, %n: tensor<2xi64> {dist.sharding = #all, dist.global = tensor<2xi64>})
    -> (tensor<8x2xf32> {dist.sharding = #whole, dist.global = tensor<8x2xf32>}) attributes {dist.spmd = @mesh} {
  %0 = dist.compact %x counts %n tokens 4 rows 5 dim 0 : (tensor<8x2xf32>, tensor<2xi64>) -> tensor<5x2xf32>
  %1 = dist.pad %0 dims [0] : (tensor<5x2xf32>) -> tensor<6x2xf32>
  %2 = dist.slice %1 axes ["tp"] dims [0] : (tensor<6x2xf32>) -> tensor<3x2xf32>
  %3 = nn.relu %2 : tensor<3x2xf32>
  %4 = dist.all_gather %3 axes ["tp"] dims [0] : (tensor<3x2xf32>) -> tensor<6x2xf32>
  %5 = nn.slice %4 starts [0, 0] limits [5, 2] strides [1, 1] : (tensor<6x2xf32>) -> tensor<5x2xf32>
  %6 = dist.expand %5 counts %n tokens 4 rows 5 dim 0 : (tensor<5x2xf32>, tensor<2xi64>) -> tensor<8x2xf32>
  return %6 : tensor<8x2xf32>
}

// -----

// The rows behind the first one take its place.

#all = #dist.sharding<@mesh, [{}]>
#whole = #dist.sharding<@mesh, [{}, {}]>
dist.mesh @mesh = <["tp"=2]>
// expected-note@below {{its rows have up to 4 true rows of groups of 4, whose numbers are here}}
func.func @shifted(%x: tensor<8x2xf32> {dist.sharding = #whole, dist.global = tensor<8x2xf32>}, %n: tensor<2xi64> {dist.sharding = #all, dist.global = tensor<2xi64>})
    -> (tensor<3x2xf32> {dist.sharding = #whole, dist.global = tensor<3x2xf32>}) attributes {dist.spmd = @mesh} {
  %0 = dist.compact %x counts %n tokens 4 rows 4 dim 0 : (tensor<8x2xf32>, tensor<2xi64>) -> tensor<4x2xf32>
  // expected-error@below {{'nn.slice' op joins rows of operand 0, of which those behind the true ones would count: expected dist.expand before}}
  %1 = nn.slice %0 starts [1, 0] limits [4, 2] strides [1, 1] : (tensor<4x2xf32>) -> tensor<3x2xf32>
  return %1 : tensor<3x2xf32>
}
