// RUN: sharding-opt %s --split-input-file --bind-state --verify-diagnostics

// expected-note@+1 {{the state}}
nn.state @w : tensor<4xf32>
// expected-error@+1 {{parameter 'w' of 'part' is a part of the state 'w': expected nn.read @w}}
func.func @part(%w: tensor<4xf32> {nn.parameter = "w", nn.parameter_offsets = array<i64: 4>}) { return }

// -----

// expected-note@+1 {{the state}}
nn.state @tied : tensor<4xf32>
// expected-error@+1 {{parameter 'w' of 'alias' is another name of the state 'tied': expected nn.read @tied}}
func.func @alias(%w: tensor<4xf32> {nn.parameter = "w", nn.aliases = ["v", "tied"]}) { return }

// -----

nn.state @s : tensor<4xf32>
func.func @written_twice(%s: tensor<4xf32> {nn.state = "s"}) -> (tensor<4xf32> {nn.state = "s"}) {
  // expected-error@+1 {{is of the state 's', which is result 0 of 'written_twice' already: expected one write}}
  nn.write @s, %s : tensor<4xf32>
  return %s : tensor<4xf32>
}

// -----

nn.state @s : tensor<4xf32>
// expected-error@+1 {{reads or writes state: expected one block, got 2}}
func.func @blocks() {
  %s = nn.read @s : tensor<4xf32>
  return
^other:
  return
}
