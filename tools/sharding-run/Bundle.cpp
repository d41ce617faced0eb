//===- Bundle.cpp - models that are compiled already ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Model.h"

#include "meshwright/runtime/include/Bundle.h"
#include "meshwright/runtime/include/Progress.h"

using namespace meshwright;
using namespace meshwright::run;

namespace {

class Bundle : public Model {
public:
  Bundle(std::string path, std::unique_ptr<rt::Session> session, int64_t entry)
      : path(std::move(path)), session(std::move(session)), entry(entry) {
    rt::Call call = this->session->getDescription().getCall(entry);
    inputs = std::move(call.inputs.values);
    outputs = std::move(call.outputs.values);
    isServing = this->session->getDescription().serving.has_value();
  }

  Status run(const std::vector<rt::HostTensor> &inputs, const std::vector<void *> &outputs,
             const Options &options) override {
    std::string error;
    session->setRecovery(options.recover);
    bool isFine = (options.state.empty() || session->load(options.state, error)) &&
                  session->run(entry, inputs, outputs, options.running, error) &&
                  (options.saveState.empty() || session->save(options.saveState, error));
    return isFine ? Fine : fail(error);
  }
  // `parseOptions` refuses --check for bundles.
  Status check(const std::vector<rt::HostTensor> &, double) override { return Error; }
  // `parseOptions` refuses pages of bundles.
  Status report(Format format, std::string &text) override {
    bool asJson = format != Format::Text;
    std::string error;
    text = rt::readReport(path, asJson, error);
    if (text.empty())
      return fail(error);
    const rt::RunReport &run = session->getRunReport();
    if (run.ranks == 0)
      return Fine;
    // The measurements of the run follow the report of the plan.
    if (!asJson)
      text += run.toText();
    else if (size_t end = text.rfind('}'); end != std::string::npos)
      text.insert(end, ",\n \"run\": " + run.toJson() + "\n");
    return Fine;
  }

private:
  std::string path;
  std::unique_ptr<rt::Session> session;
  int64_t entry;
};

} // namespace

Status run::loadBundle(const Options &options, std::unique_ptr<Model> &model) {
  std::string error;
  std::optional<rt::Progress> progress;
  if (options.verifyWeights)
    progress.emplace("verifying weights");
  rt::BundleWeights weights{options.weights, options.randomWeights, options.verifyWeights};
  auto session = rt::openBundle(options.model, options.backend, weights, error);
  int64_t entry = session ? session->getDescription().findEntry(options.entry, error) : -1;
  if (entry < 0)
    return fail(error);
  model = std::make_unique<Bundle>(options.model, std::move(session), entry);
  return Fine;
}
