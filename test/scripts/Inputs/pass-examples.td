// Of the examples of set-target, those of lines 10 and 15 hold.
def SetTargetPass : Pass<"set-target", "::mlir::ModuleOp"> {
  let description = [{
    Before:
    ```mlir
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }
    ```
    After:
    ```mlir
    !y = tensor<4xf32>
    func.func @main(%y: !y) -> !y { return %y : !y }
    ```
    After, with `target=cpu:haswell`:
    ```mlir
    !x = tensor<4xf32>
    func.func @main(%x: !x) -> !x attributes {rt.target = "cpu:haswell"} { return %x : !x }
    ```
    After, with `target=cpu:x86-64`:
    ```mlir
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }
    ```
    After, with `target=tpu`:
    ```mlir
    module {}
    ```
    Prints, with `target=tpu`:
    ```text
    error: unknown target   'tpu'
    error: no such target
    ```
    After `target=cpu`:
    ```mlir
    module {}
    ```
    An example alone.
    ```mlir
    func.func @main() { return }
    ```
    A list.
    ```text
    cpu
    ```
    Before:
    ```mlir
    func.func @main() { %0 = nn.none }
    ```
  }];
}
def ReplaceRowsPass : Pass<"replace-rows", "::mlir::func::FuncOp"> {
  let description = [{
    After:
    ```mlir
    module {}
    ```
  }];
}
def PlanGraphsPass : Pass<"plan-graphs", "::mlir::func::FuncOp"> {
  let description = [{
    Has no example.
  }];
}
