// SPDX-License-Identifier: Apache-2.0
#include "trial.hpp"

namespace fovea::check {

const std::vector<Answer>& Trial::answers() {
  if (answers_.empty()) answers_ = expect();
  return answers_;
}

void Trial::judge_outputs(Judgement& verdict) {
  for (const Answer& answer : answers()) answer.judge(verdict);
}

Judgement Trial::judge(E4m3Products products) {
  Judgement verdict{.products = products};
  judge_outputs(verdict);
  if (const std::string changed = what_changed(); !changed.empty()) verdict.fail(changed);
  reset_outputs();
  return verdict;
}

std::string Trial::what_changed() const {
  for (const Named& named : outputs()) {
    if (!named.tensor.storage().red_zones_intact()) return std::string("the red zone of ").append(named.name).append(" was written");
    if (!named.tensor.storage().sealed_contents_intact())
      return std::string(named.name)
          .append(" was written where it must not be (rows of no sequence, slots of no row, or gaps between rows)");
  }
  for (const Named& named : inputs())
    if (!named.tensor.storage().sealed_contents_intact()) return std::string("the input ").append(named.name).append(" was changed");
  return {};
}

std::vector<Named> Trial::tensors() const {
  std::vector<Named> all = inputs();
  for (Named& named : outputs()) all.push_back(std::move(named));
  return all;
}

void Trial::reset_outputs() const {
  for (const Named& named : outputs()) named.tensor.storage().restore();
}

void Trial::seal() const {
  for (const Named& named : inputs()) named.tensor.storage().seal(false);
  for (const Named& named : outputs()) named.tensor.storage().seal(true);
}

}  // namespace fovea::check
