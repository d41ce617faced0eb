// RUN: sharding-opt %s --propagate-shardings --remarks=note 2>&1 | FileCheck %s

// Two inputs that disagree about one dimension: both places are named.

// CHECK: sum.py:9:1: remark: [propagate-shardings] note: conflicting shardings of one dimension: {"a"} from x (model.py:3), {"b"} from y (model.py:4); one of them is resharded here
dist.mesh @mesh = <["a"=2, "b"=2]>
func.func @main(%x: tensor<4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"a"}]>} loc("x"("model.py":3:1)),
                %y: tensor<4xf32> {nn.input = "y", dist.sharding = #dist.sharding<@mesh, [{"b"}]>} loc("y"("model.py":4:1)))
    -> (tensor<4xf32> {nn.output = "z"}) {
  %z = nn.add %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32> loc("sum.py":9:1)
  return %z : tensor<4xf32>
}
