// RUN: sharding-opt %s --split-input-file --choose-plan="request='mesh=auto memory-ceiling=1K'" --verify-diagnostics

// expected-error @+1 {{mesh=auto: the program has no mesh: expected ranks=N}}
module {
  func.func @main(%x: tensor<4x8xf32> {nn.input = "x"}) -> (tensor<4x8xf32> {nn.output = "y"}) {
    %0 = nn.relu %x : tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
}

// -----

module {
  // expected-error @+1 {{shards values of the program: the planner chooses no other mesh}}
  dist.mesh @mesh = <["tp"=2]>
  func.func @main(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>})
      -> (tensor<4x8xf32> {nn.output = "y"}) {
    %0 = nn.relu %x : tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
}

// -----

// expected-error @+1 {{the planner expects a global program, got an SPMD program}}
module {
  dist.mesh @mesh = <["tp"=2]>
  func.func @main(%x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>,
                                       dist.global = tensor<4x8xf32>})
      -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>,
                           dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
    return %x : tensor<2x8xf32>
  }
}

// -----

// expected-error @+1 {{memory-ceiling: no plan fits in 1024 bytes (1.00 KiB): the least that is needed is}}
module {
  dist.mesh @mesh = <["any"=4]>
  func.func @main(%x: tensor<8x64xf32> {nn.input = "x"}, %w: tensor<64x64xf32> {nn.parameter = "w"})
      -> (tensor<8x64xf32> {nn.output = "y"}) {
    %0 = nn.linear %x, %w : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
    return %0 : tensor<8x64xf32>
  }
}

// -----

// expected-error @+1 {{the planner expects a program with an entry, got none}}
module {
}
