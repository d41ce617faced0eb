// RUN: sharding-opt %s --serve="page-size=4 requests=2 buckets=4" -split-input-file -verify-diagnostics -o %t

func.func @later(%ids: tensor<1x6xi64> {nn.input = "ids"}, %e: tensor<9x8xf32> {nn.parameter = "e"})
    -> (tensor<1x6x9xf32> {nn.output = "logits"}) {
  %0 = nn.embedding %ids, %e : (tensor<1x6xi64>, tensor<9x8xf32>) -> tensor<1x6x8xf32>
  %1 = nn.reshape %0 : (tensor<1x6x8xf32>) -> tensor<1x6x1x8xf32>
  %2 = nn.transpose %1 [0, 2, 1, 3] : (tensor<1x6x1x8xf32>) -> tensor<1x1x6x8xf32>
  // expected-error@+1 {{sees later tokens: a model that serves has causal attention}}
  %3 = nn.attention %2, %2, %2 scale 0.5 : (tensor<1x1x6x8xf32>, tensor<1x1x6x8xf32>, tensor<1x1x6x8xf32>) -> tensor<1x1x6x8xf32>
  %4 = nn.reshape %3 : (tensor<1x1x6x8xf32>) -> tensor<1x6x8xf32>
  %5 = nn.linear %4, %e : (tensor<1x6x8xf32>, tensor<9x8xf32>) -> tensor<1x6x9xf32>
  return %5 : tensor<1x6x9xf32>
}

// -----

func.func @mixed(%ids: tensor<1x6xi64> {nn.input = "ids"}, %e: tensor<9x8xf32> {nn.parameter = "e"})
    -> (tensor<1x6x9xf32> {nn.output = "logits"}) {
  %0 = nn.embedding %ids, %e : (tensor<1x6xi64>, tensor<9x8xf32>) -> tensor<1x6x8xf32>
  // expected-error@+1 {{mixes tokens: a model that serves does so in causal attention only}}
  %1 = nn.cumsum %0 dim 1 : tensor<1x6x8xf32>
  %2 = nn.linear %1, %e : (tensor<1x6x8xf32>, tensor<9x8xf32>) -> tensor<1x6x9xf32>
  return %2 : tensor<1x6x9xf32>
}

// -----

// expected-error@+1 {{expected ids of tokens of type tensor<1xLENGTHxi64> as input, got 'tensor<2x6xi64>'}}
func.func @batch(%ids: tensor<2x6xi64> {nn.input = "ids"}) -> tensor<2x6xi64> {
  return %ids : tensor<2x6xi64>
}

// -----

func.func @output(%ids: tensor<1x6xi64> {nn.input = "ids"}, %e: tensor<9x8xf32> {nn.parameter = "e"})
    -> (tensor<1x8x6xf32> {nn.output = "y"}) {
  %0 = nn.embedding %ids, %e : (tensor<1x6xi64>, tensor<9x8xf32>) -> tensor<1x6x8xf32>
  // expected-error@+1 {{expected logits [1, length, vocabulary] as the first output, got 'tensor<1x8x6xf32>'}}
  %1 = nn.transpose %0 [0, 2, 1] : (tensor<1x6x8xf32>) -> tensor<1x8x6xf32>
  return %1 : tensor<1x8x6xf32>
}

// -----

func.func @table(%ids: tensor<1x6xi64> {nn.input = "ids"}, %e: tensor<9x8xf32> {nn.parameter = "e"},
                 %b: tensor<6x6xf32> {nn.parameter = "b"}) -> (tensor<1x6x9xf32> {nn.output = "logits"}) {
  %0 = nn.embedding %ids, %e : (tensor<1x6xi64>, tensor<9x8xf32>) -> tensor<1x6x8xf32>
  %1 = nn.reshape %0 : (tensor<1x6x8xf32>) -> tensor<1x1x6x8xf32>
  // expected-error@+1 {{has a bias that does not follow from the distance of the key}}
  %2 = nn.attention %1, %1, %1 bias %b scale 0.5 {causal} : (tensor<1x1x6x8xf32>, tensor<1x1x6x8xf32>, tensor<1x1x6x8xf32>, tensor<6x6xf32>) -> tensor<1x1x6x8xf32>
  %3 = nn.reshape %2 : (tensor<1x1x6x8xf32>) -> tensor<1x6x8xf32>
  %4 = nn.linear %3, %e : (tensor<1x6x8xf32>, tensor<9x8xf32>) -> tensor<1x6x9xf32>
  return %4 : tensor<1x6x9xf32>
}
