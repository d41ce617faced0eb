// RUN: sharding-opt %s --split-input-file --verify-placement --verify-diagnostics

nn.state @s : tensor<16xf32>
// expected-note@+1 {{the value is from here}}
func.func @read_after_update(%s: tensor<16xf32> {nn.state = "s"}) -> (tensor<16xf32> {nn.output = "y"}, tensor<16xf32> {nn.state = "s"})
    attributes {rt.arena = 64 : i64} {
  // expected-error@+1 {{writes result 0 over the state "s" before the last reader of the value there}}
  %0 = rt.kernel %s at [0] over ["s"] : (tensor<16xf32>) -> tensor<16xf32> {
  ^bb0(%a: tensor<16xf32>):
    %2 = nn.neg %a : tensor<16xf32>
    rt.yield %2 : tensor<16xf32>
  }
  // expected-note@+1 {{and needed here}}
  %1 = rt.kernel %s at [0] over [""] : (tensor<16xf32>) -> tensor<16xf32> {
  ^bb0(%a: tensor<16xf32>):
    %2 = nn.exp %a : tensor<16xf32>
    rt.yield %2 : tensor<16xf32>
  }
  return %1, %0 : tensor<16xf32>, tensor<16xf32>
}

// -----

nn.state @s : tensor<16xf32>
func.func @another_value(%s: tensor<16xf32> {nn.state = "s"}) -> (tensor<16xf32> {nn.state = "s"})
    attributes {rt.arena = 64 : i64} {
  // expected-error@+1 {{writes over the state "s", which gets another value: expected its new value}}
  %0 = rt.kernel %s at [0] over ["s"] : (tensor<16xf32>) -> tensor<16xf32> {
  ^bb0(%a: tensor<16xf32>):
    %2 = nn.neg %a : tensor<16xf32>
    rt.yield %2 : tensor<16xf32>
  }
  %1 = rt.kernel %0 at [0] : (tensor<16xf32>) -> tensor<16xf32> {
  ^bb0(%a: tensor<16xf32>):
    %2 = nn.exp %a : tensor<16xf32>
    rt.yield %2 : tensor<16xf32>
  }
  return %1 : tensor<16xf32>
}

// -----

nn.state @s : tensor<16xf32>
func.func @no_new_value(%s: tensor<16xf32> {nn.state = "s"}) -> (tensor<16xf32> {nn.output = "y"})
    attributes {rt.arena = 64 : i64} {
  // expected-error@+1 {{writes result 0 over the state "s", to which the function gives no value}}
  %0 = rt.kernel %s at [0] over ["s"] : (tensor<16xf32>) -> tensor<16xf32> {
  ^bb0(%a: tensor<16xf32>):
    %2 = nn.neg %a : tensor<16xf32>
    rt.yield %2 : tensor<16xf32>
  }
  return %0 : tensor<16xf32>
}

// -----

nn.state @s : tensor<16xf32>
func.func @other_places(%s: tensor<16xf32> {nn.state = "s"}) -> (tensor<16xf32> {nn.state = "s"})
    attributes {rt.arena = 64 : i64} {
  // expected-error@+1 {{writes result 0 over the state "s", which it reads at other places}}
  %0 = rt.kernel %s at [0] over ["s"] : (tensor<16xf32>) -> tensor<16xf32> {
  ^bb0(%a: tensor<16xf32>):
    %2 = nn.softmax %a dim 0 : tensor<16xf32>
    rt.yield %2 : tensor<16xf32>
  }
  return %0 : tensor<16xf32>
}

// -----

nn.state @s : tensor<16xf32>
func.func @twice(%s: tensor<16xf32> {nn.state = "s"}) -> (tensor<16xf32> {nn.state = "s"})
    attributes {rt.arena = 64 : i64} {
  %0 = rt.kernel %s at [0] over ["s"] : (tensor<16xf32>) -> tensor<16xf32> {
  ^bb0(%a: tensor<16xf32>):
    %2 = nn.neg %a : tensor<16xf32>
    rt.yield %2 : tensor<16xf32>
  }
  // expected-error@+1 {{writes result 0 over the state "s" a second time}}
  %1 = rt.kernel %0 at [0] over ["s"] : (tensor<16xf32>) -> tensor<16xf32> {
  ^bb0(%a: tensor<16xf32>):
    %2 = nn.exp %a : tensor<16xf32>
    rt.yield %2 : tensor<16xf32>
  }
  return %1 : tensor<16xf32>
}

// -----

nn.state @s : tensor<8x4xf32>
func.func @logs_overlap(%s: tensor<8x4xf32> {nn.state = "s"}, %i: tensor<2xi64> {nn.input = "i"}, %x: tensor<2x4xf32> {nn.input = "x"})
    -> (tensor<8x4xf32> {nn.state = "s"}) attributes {rt.arena = 0 : i64} {
  %0 = rt.kernel %s, %i, %x at [0] over ["s"] : (tensor<8x4xf32>, tensor<2xi64>, tensor<2x4xf32>) -> tensor<8x4xf32> {
  ^bb0(%a: tensor<8x4xf32>, %b: tensor<2xi64>, %c: tensor<2x4xf32>):
    %2 = nn.index_copy %a, %b, %c dim 0 : (tensor<8x4xf32>, tensor<2xi64>, tensor<2x4xf32>) -> tensor<8x4xf32>
    rt.yield %2 : tensor<8x4xf32>
  }
  // expected-error@+1 {{over the state "s": expected the rows that it replaces at 128 of the log or later, got 64}}
  %1 = rt.kernel %0, %i, %x at [64] over ["s"] : (tensor<8x4xf32>, tensor<2xi64>, tensor<2x4xf32>) -> tensor<8x4xf32> {
  ^bb0(%a: tensor<8x4xf32>, %b: tensor<2xi64>, %c: tensor<2x4xf32>):
    %2 = nn.index_copy %a, %b, %c dim 0 : (tensor<8x4xf32>, tensor<2xi64>, tensor<2x4xf32>) -> tensor<8x4xf32>
    rt.yield %2 : tensor<8x4xf32>
  }
  return %1 : tensor<8x4xf32>
}
