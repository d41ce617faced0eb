// RUN: sharding-opt %s --split-input-file --tie-entries --verify-diagnostics

dist.mesh @mesh = <["tp"=2]>
// expected-note@+1 {{the other place}}
func.func @prefill(%w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>}) { return }
// expected-error@+1 {{parameter 'w': expected the sharding #dist.sharding<@mesh, [{"tp"}, {}]>, as in another place, got #dist.sharding<@mesh, [{}, {"tp"}]> here}}
func.func @decode(%w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>}) { return }

// -----

dist.mesh @mesh = <["tp"=2]>
// expected-note@+1 {{the other place}}
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>} : tensor<4xf32>
// expected-error@+1 {{state 's': expected the sharding #dist.sharding<@mesh, [{"tp"}]>, as in another place, got #dist.sharding<@mesh, [{}]> here}}
func.func @entry(%s: tensor<4xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{}]>}) { return }
