// RUN: sharding-opt %s -split-input-file -verify-diagnostics

// expected-error@+1 {{has an empty name}}
nn.state @"" : tensor<2xf32>

// -----

// expected-error@+1 {{@s: expected one initial value, got parameter "w" and fill 0.000000e+00 : f32}}
nn.state @s {parameter = "w", fill = 0.0 : f32} : tensor<2xf32>

// -----

// expected-error@+1 {{@s starts as a parameter without a name}}
nn.state @s {parameter = ""} : tensor<2xf32>

// -----

// expected-error@+1 {{@s: expected a fill that is a number of type 'f32', got 0 : i64}}
nn.state @s {fill = 0 : i64} : tensor<2xf32>

// -----

// expected-error@+1 {{@s: expected a fill that is a number of type 'i64', got dense<0> : tensor<2xi64>}}
nn.state @s {fill = dense<0> : tensor<2xi64>} : tensor<2xi64>

// -----

// expected-error@+1 {{failed to satisfy constraint: type attribute of statically shaped tensor}}
nn.state @s : tensor<?xf32>

// -----

dist.mesh @mesh = <["tp"=2]>
// expected-error@+1 {{'dist.sharding': expected 1 dimensions, got 2}}
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>} : tensor<4xf32>

// -----

// expected-note@+1 {{see existing symbol definition here}}
nn.state @s : tensor<2xf32>
// expected-error@+1 {{redefinition of symbol named 's'}}
nn.state @s : tensor<2xf32>

// -----

func.func @unknown() -> tensor<2xf32> {
  // expected-error@+1 {{names @s, which is no state: expected an nn.state of that name in the module}}
  %0 = nn.read @s : tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

func.func @no_state(%x: tensor<2xf32>) {
  // expected-error@+1 {{names @no_state, which is no state}}
  nn.write @no_state, %x : tensor<2xf32>
  return
}

// -----

// expected-note@+1 {{the state}}
nn.state @s : tensor<2xf32>
func.func @read_type() -> tensor<2xbf16> {
  // expected-error@+1 {{expected a value of type 'tensor<2xf32>', the type of @s, got 'tensor<2xbf16>'}}
  %0 = nn.read @s : tensor<2xbf16>
  return %0 : tensor<2xbf16>
}

// -----

// expected-note@+1 {{the state}}
nn.state @s : tensor<2xf32>
func.func @write_type(%x: tensor<2x1xf32>) {
  // expected-error@+1 {{expected a value of type 'tensor<2xf32>', the type of @s, got 'tensor<2x1xf32>'}}
  nn.write @s, %x : tensor<2x1xf32>
  return
}

// -----

nn.state @s : tensor<2xf32>
func.func @two_writes(%x: tensor<2xf32>) {
  // expected-note@+1 {{the first}}
  nn.write @s, %x : tensor<2xf32>
  // expected-error@+1 {{is the second one of @s in 'two_writes': expected one}}
  nn.write @s, %x : tensor<2xf32>
  return
}

// -----

nn.state @s : tensor<2xf32>
func.func @in_a_region(%x: tensor<2xf32>, %c: i1) {
  scf.if %c {
    // expected-error@+1 {{of @s may not happen in every call: expected it in the entry block of a function}}
    nn.write @s, %x : tensor<2xf32>
  }
  return
}

// -----

dist.mesh @mesh = <["tp"=2]>
nn.state @s : tensor<2xf32>
func.func @spmd() attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{is in an SPMD function: expected an argument or a result with nn.state}}
  %0 = nn.read @s : tensor<2xf32>
  return
}

// -----

// expected-error@+1 {{has argument 0 for the state 's': expected an nn.state of that name in the module}}
func.func @bound_unknown(%x: tensor<2xf32> {nn.state = "s"}) { return }

// -----

// expected-note@+1 {{the state}}
nn.state @s : tensor<2xf32>
// expected-error@+1 {{expected result 0 of type 'tensor<2xf32>' for the state 's', got 'tensor<2xbf16>'}}
func.func @bound_type(%x: tensor<2xbf16>) -> (tensor<2xbf16> {nn.state = "s"}) { return %x : tensor<2xbf16> }

// -----

nn.state @s : tensor<2xf32>
// expected-error@+1 {{expected one argument for the state 's', got argument 0 and argument 1}}
func.func @bound_twice(%x: tensor<2xf32> {nn.state = "s"}, %y: tensor<2xf32> {nn.state = "s"}) { return }

// -----

nn.state @s : tensor<2xf32>
// expected-error@+1 {{expected argument 0 to be an input, a parameter or a state, got both nn.input and nn.state}}
func.func @input_and_state(%x: tensor<2xf32> {nn.state = "s", nn.input = "x"}) { return }

// -----

nn.state @s : tensor<2xf32>
// expected-error@+1 {{expected result 0 to be an output or a state, got both nn.output and nn.state}}
func.func @output_and_state(%x: tensor<2xf32>) -> (tensor<2xf32> {nn.state = "s", nn.output = "y"}) { return %x : tensor<2xf32> }

// -----

// expected-error@+1 {{expected nn.state on argument 0 to be a string that is not empty, got ""}}
func.func @unnamed(%x: tensor<2xf32> {nn.state = ""}) { return }

// -----

// expected-error@+1 {{@s is transient and has no fill: expected the value that it begins with}}
nn.state @s {transient} : tensor<4xf32>

// -----

// expected-error@+1 {{@s: expected the role "parameter", "master", "optimizer", "gradient" or "cache", got "moment"}}
nn.state @s {fill = 0.0 : f32, role = "moment"} : tensor<4xf32>

// -----

// expected-error@+2 {{expected argument 0 to be an input, a parameter or a state, got both nn.parameter and nn.state}}
nn.state @s : tensor<4xf32>
func.func @other(%w: tensor<4xf32> {nn.parameter = "w", nn.state = "s"}) { return }
