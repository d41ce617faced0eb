// RUN: sharding-opt %s --split-input-file --propagate-shardings --verify-diagnostics

dist.mesh @mesh = <["tp"=2]>
func.func @first(%w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>}) { // expected-note {{the other place}}
  return
}
// expected-error@+1 {{parameter 'w': expected the sharding #dist.sharding<@mesh, [{"tp"}, {}]>, as in another place, got #dist.sharding<@mesh, [{}, {"tp"}]> here}}
func.func @second(%w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>}) {
  return
}

// -----

dist.mesh @mesh = <["tp"=2]>
// expected-note@+1 {{the other place}}
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{}]>} : tensor<4xf32>
func.func @state() -> (tensor<4xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>}) {
  %0 = nn.constant dense<0.0> : tensor<4xf32>
  // expected-error@+1 {{state 's': expected the sharding #dist.sharding<@mesh, [{}]>, as in another place, got #dist.sharding<@mesh, [{"tp"}]> here}}
  return %0 : tensor<4xf32>
}

// -----

dist.mesh @mesh = <["tp"=2]>
// expected-note@+1 {{the other place}}
func.func @prefill(%w: tensor<6x8xf32> {nn.parameter = "w"}) { return }
// expected-error@+1 {{parameter 'w' in 'decode': expected 'tensor<6x8xf32>', as in 'prefill', got 'tensor<8x6xf32>'}}
func.func @decode(%w: tensor<8x6xf32> {nn.parameter = "w"}) { return }

// -----

dist.mesh @mesh = <["tp"=2]>
// expected-note@+1 {{the other place}}
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>} : tensor<4xf32>
// expected-error@+1 {{state 's': expected the sharding #dist.sharding<@mesh, [{}], unreduced = {"tp"}>, as in another place, got #dist.sharding<@mesh, [{}]> here}}
func.func @partial(%s: tensor<4xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{}]>}) { return }

// -----

dist.mesh @mesh = <["tp"=2]>
nn.state @s : tensor<4xf32>
func.func @unbound() {
  // expected-error@+1 {{names a state: expected '--bind-state' to have run}}
  %s = nn.read @s : tensor<4xf32>
  return
}
