//===- Passes.td - train -----------------------------------*- tablegen -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_TRAIN_PASSES_TD
#define MESHWRIGHT_PASSES_TRAIN_PASSES_TD

include "mlir/Pass/PassBase.td"

def BuildStepsPass : Pass<"build-steps", "::mlir::ModuleOp"> {
  let summary = "turn a program with gradients into training steps";
  let description = [{
    Takes a program whose outputs end with gradients (see `request-gradients`). Turns it into
    two entries:

    - `step` computes the outputs and the gradients, and updates each parameter that has a
      gradient by the rule of an optimizer. Its last input `lr` is the learning rate.
    - `evaluate` computes the outputs, drops nothing, and changes nothing.

    The parameters become states. So do the averages that the optimizer keeps
    (`optimizer.exp_avg.NAME`), the number of steps (`optimizer.step`), and the values in f32
    of parameters of a narrower type (`master.NAME`). A parameter that the loss does not depend
    on stays as it is.

    With `microbatches` the program is for one microbatch. A call of an entry runs a private copy of it
    on all microbatches but the last, and then the entry on the last one (`nn.call`). They take means of the
    gradients and of the outputs without dimensions, whose sums are transient states (`grad.NAME`,
    `sum.NAME`). Other outputs have the rows of all microbatches. Each microbatch
    has all of an input whose dimension 0 is not the batch (see `annotate-data-parallel`), which
    `nn.batch = false` says afterwards. A state that the program writes passes from one microbatch to the
    next in a transient one (`microbatch.NAME`), and the step writes it.

    A second entry `evaluate` stays. Its dropout and its writes go.

    Random numbers depend on the states `random.seed`, which begins with `seed`, and `random.step`,
    to which a step adds 1. Each microbatch has a number of its own.

    With `loss-scale` the gradients are those of the loss times the state `loss_scale`, and are divided
    by it in f32. A step in which one of them is not finite changes neither parameters nor averages, and
    adds 1 to the state `skipped_steps`. With `growth-interval` such a step halves the scale, and that
    many other steps in succession (`loss_scale.growth_tracker`) double it.

    The update rules are those of PyTorch's optimizers of the same names. With `clip-norm` all
    gradients are scaled down by one factor if their common norm is above it.

    Before:
    ```mlir
    func.func @main(%x: tensor<4xf32> {nn.input = "x"}, %w: tensor<4xf32> {nn.parameter = "w"})
        -> (tensor<f32> {nn.output = "loss"}, tensor<4xf32> {nn.output = "grad.w"}) {
      %0 = nn.mul %x, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %1 = nn.reduce sum %0 dims [0] : (tensor<4xf32>) -> tensor<f32>
      %2 = nn.gradient %1 of "w" : (tensor<f32>) -> tensor<4xf32>
      return %1, %2 : tensor<f32>, tensor<4xf32>
    }
    ```
    After, with `optimizer=sgd`:
    ```mlir
    nn.state @w {role = "parameter"} : tensor<4xf32>
    func.func @step(%x: tensor<4xf32> {nn.input = "x"}, %w: tensor<4xf32> {nn.parameter = "w"},
                    %lr: tensor<f32> {nn.input = "lr", nn.default = 1.0e-3 : f32})
        -> (tensor<f32> {nn.output = "loss"}) {
      %0 = nn.mul %x, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %1 = nn.reduce sum %0 dims [0] : (tensor<4xf32>) -> tensor<f32>
      %2 = nn.gradient %1 of "w" : (tensor<f32>) -> tensor<4xf32>
      %3 = nn.mul %2, %lr : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
      %4 = nn.sub %w, %3 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      nn.write @w, %4 : tensor<4xf32>
      return %1 : tensor<f32>
    }
    func.func @evaluate(%x: tensor<4xf32> {nn.input = "x"}, %w: tensor<4xf32> {nn.parameter = "w"})
        -> (tensor<f32> {nn.output = "loss"}) {
      %0 = nn.mul %x, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      %1 = nn.reduce sum %0 dims [0] : (tensor<4xf32>) -> tensor<f32>
      return %1 : tensor<f32>
    }
    ```
  }];
  let options = [
    Option<"optimizer", "optimizer", "std::string", /*default=*/"\"sgd\"",
           "the rule of the update: sgd, adam or adamw">,
    Option<"lr", "lr", "double", /*default=*/"0.001", "the learning rate of a call without one">,
    Option<"momentum", "momentum", "double", /*default=*/"0", "of sgd">,
    Option<"beta1", "beta1", "double", /*default=*/"0.9",
           "the weight of the former average of gradients, of adam and adamw">,
    Option<"beta2", "beta2", "double", /*default=*/"0.999",
           "the weight of the former average of squares of gradients, of adam and adamw">,
    Option<"eps", "eps", "double", /*default=*/"1e-8",
           "added to the root of the average of squares, of adam and adamw">,
    Option<"weightDecay", "weight-decay", "double", /*default=*/"0",
           "the share of a parameter that is added to its gradient; of adamw: that a step takes "
           "away, times the learning rate">,
    Option<"clipNorm", "clip-norm", "double", /*default=*/"0",
           "the largest norm of all gradients together; 0: any">,
    Option<"microbatches", "microbatches", "int64_t", /*default=*/"1",
           "how many times an entry runs the program, on chunks of its inputs' rows">,
    Option<"seed", "seed", "int64_t", /*default=*/"0", "of the random numbers">,
    Option<"lossScale", "loss-scale", "double", /*default=*/"0",
           "the factor of the loss before differentiation, at first; 0: none">,
    Option<"growthInterval", "growth-interval", "int64_t", /*default=*/"0",
           "after how many finite steps the factor grows; 0: it stays">];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

def ShardOptimizerPass : Pass<"shard-optimizer", "::mlir::ModuleOp"> {
  let summary = "shard what an optimizer keeps over ranks that hold equal parameters";
  let description = [{
    Gives averages and masters of a parameter the parameter's layout, and shards one factor of it
    over `axes` as well. Constrains the gradient and the new value of the parameter to this
    layout. So the gradient is reduced and scattered, each rank updates its shard, and the new
    parameter is gathered: as many bytes as the all-reduce of the gradient.

    Without `axes` these are the axes with the roles data, ring and ulysses, along which ranks see
    other tokens. On a mesh without roles this is `dp`.

    In mode `auto` a parameter's states are sharded if the cost model finds that the update
    becomes faster by more than the collectives cost that take the place of one all-reduce.

    Before:
    ```mlir
    #tp = #dist.sharding<@mesh, [{"tp"}, {} ]>
    !w = tensor<16x8xf32>
    dist.mesh @mesh = <["dp"=2, "tp"=2]>
    nn.state @w {role = "parameter"} : !w
    nn.state @optimizer.exp_avg.w {fill = 0.0 : f32, role = "optimizer"} : !w
    func.func @step(%w: !w {nn.parameter = "w", nn.state = "w", dist.sharding = #tp},
                    %m: !w {nn.state = "optimizer.exp_avg.w"})
        -> (!w {nn.state = "w"}, !w {nn.state = "optimizer.exp_avg.w"}) {
      %loss = nn.reduce sum %w dims [0, 1] : (!w) -> tensor<f32>
      %g = nn.gradient %loss of "w" : (tensor<f32>) -> !w
      %m1 = nn.add %m, %g : (!w, !w) -> !w
      %w1 = nn.sub %w, %m1 : (!w, !w) -> !w
      return %w1, %m1 : !w, !w
    }
    ```
    After, with `axes=dp mode=on`:
    ```mlir
    #tp = #dist.sharding<@mesh, [{"tp"}, {} ]>
    #both = #dist.sharding<@mesh, [{"tp", "dp"}, {} ]>
    !w = tensor<16x8xf32>
    dist.mesh @mesh = <["dp"=2, "tp"=2]>
    nn.state @w {role = "parameter", dist.sharding = #tp} : !w
    nn.state @optimizer.exp_avg.w {fill = 0.0 : f32, role = "optimizer", dist.sharding = #both} : !w
    func.func @step(%w: !w {nn.parameter = "w", nn.state = "w", dist.sharding = #tp},
                    %m: !w {nn.state = "optimizer.exp_avg.w", dist.sharding = #both})
        -> (!w {nn.state = "w", dist.sharding = #tp},
            !w {nn.state = "optimizer.exp_avg.w", dist.sharding = #both}) {
      %loss = nn.reduce sum %w dims [0, 1] : (!w) -> tensor<f32>
      %g = nn.gradient %loss of "w" : (tensor<f32>) -> !w
      %0 = dist.constrain %g <@mesh, [{"tp", "dp"}, {} ]> : !w
      %m1 = nn.add %m, %0 : (!w, !w) -> !w
      %w1 = nn.sub %w, %m1 : (!w, !w) -> !w
      %1 = dist.constrain %w1 <@mesh, [{"tp", "dp"}, {} ]> : !w
      return %1, %m1 : !w, !w
    }
    ```
  }];
  let options = [
    ListOption<"axes", "axes", "std::string",
               "mesh axes, without the ones that the mesh lacks; by default the axes of the roles above">,
    Option<"mode", "mode", "::meshwright::OnOffAuto", "::meshwright::OnOffAuto::Auto",
           "on, off or auto">];
  let dependentDialects = ["::meshwright::dist::DistDialect", "::meshwright::nn::NnDialect"];
}

#endif
