// The reducer drops a function and an op without users, as long as the script finds nn.exp.

// RUN: echo '#!/bin/sh' > %t.sh && echo 'grep -q nn.exp "$1" && exit 1; exit 0' >> %t.sh && chmod +x %t.sh
// RUN: meshwright-reduce %s --reduction-tree="traversal-mode=0 test=%t.sh" 2>/dev/null | FileCheck %s --implicit-check-not=nn.neg

// CHECK-NOT: func.func @unused
// CHECK: func.func @main
// CHECK: nn.exp

func.func @unused(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = nn.neg %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = nn.exp %x : tensor<4xf32>
  %1 = nn.neg %0 : tensor<4xf32>
  return %0 : tensor<4xf32>
}
