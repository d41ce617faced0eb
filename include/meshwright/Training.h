//===- Training.h - the options of training steps ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TRAINING_H
#define MESHWRIGHT_TRAINING_H

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshwright {

/// An update rule, as PyTorch's optimizer of the same name has it, and its numbers. A rule ignores
/// the numbers that it does not have.
struct OptimizerOptions {
  /// "sgd", "adam" or "adamw".
  std::string kind = "sgd";
  /// The learning rate of a step that states none.
  double lr = 1e-3;
  /// The momentum of sgd.
  double momentum = 0;
  /// The numbers of adam and adamw: the weights of the former averages of gradients and of their
  /// squares, and the number that is added to the root of the average of squares.
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weightDecay = 0;
};

/// How to train a model.
struct TrainOptions {
  OptimizerOptions optimizer;
  /// The output to minimise: its position or its name.
  std::string loss = "0";
  /// Shell patterns of the names of parameters to train; all where empty.
  std::vector<std::string> parameters;
  /// Names of parameters that are not trained.
  std::vector<std::string> frozen;
  /// The largest norm of all gradients together; 0: any.
  double clipNorm = 0;
  /// How many times a step runs the program, on chunks of rows. The program is for one of them.
  int64_t microbatches = 1;
  /// The seed of the random numbers.
  int64_t seed = 0;
  /// The factor of the loss before differentiation, at first; 0: none. Steps whose gradients are not
  /// finite are skipped.
  double lossScale = 0;
  /// After how many finite steps the factor doubles; a step that is not finite halves it. 0: it stays.
  int64_t growthInterval = 0;
};

/// A tensor of a module that no call changes.
struct FixedTensor {
  /// Its name in the program. A tensor that the program does not read has the module's name.
  std::string name;
  /// The element type as IR spells it: "f32".
  std::string type;
  std::vector<int64_t> shape;
  /// True if the program reads it. If not, a session may be given another value.
  bool isRead = true;
  /// The dense elements. Null if they are not known.
  std::shared_ptr<const void> data;
  int64_t bytes = 0;
};

/// How a program that trains maps to PyTorch's `state_dict`s of its module and of the optimizer.
/// The values that are not here are states of the program.
struct StateDictLayout {
  OptimizerOptions optimizer;
  /// The keys of the module's `state_dict`, in its order, each with the name of its tensor. Tied
  /// keys have one tensor.
  std::vector<std::pair<std::string, std::string>> keys;
  /// The names of the parameters that the optimizer has, in its order.
  std::vector<std::string> trained;
  /// The tensors of the module that are not states.
  std::vector<FixedTensor> fixed;
};

/// Values of a session that are no states of its program. They are saved with the state.
struct SavedExtras {
  /// The learning rate of calls that give none; none: the program's own.
  std::optional<double> learningRate;
  /// Tensors of the module that the program does not read.
  std::vector<FixedTensor> unread;
  /// The requests of a session that serves, as text; empty if there are none.
  std::string requests;
};

/// The input of a training step that is its learning rate.
inline constexpr const char *kLearningRate = "lr";

} // namespace meshwright

#endif // MESHWRIGHT_TRAINING_H
