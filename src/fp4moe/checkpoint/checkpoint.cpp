#include "fp4moe/checkpoint/checkpoint.hpp"

#include "fp4moe/checkpoint/models.hpp"
#include "fp4moe/checkpoint/survey.hpp"

namespace fp4moe::checkpoint {

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  auto store = tensor::Store::open(path);
  if (!store) return store.why();
  return of(*std::move(store));
}

Result<Checkpoint> Checkpoint::of(tensor::Store store) {
  auto owned = std::make_unique<tensor::Store>(std::move(store));
  Survey found = survey(*owned);
  return from(std::move(owned), std::move(found));
}

Result<Checkpoint> Checkpoint::from(std::unique_ptr<tensor::Store> store, Survey found) {
  if (!found.problems.empty()) return std::move(found.problems.front());
  Checkpoint checkpoint;
  checkpoint.store_ = std::move(store);
  checkpoint.config_ = std::move(found.facts.model);
  checkpoint.row_ = found.row;
  checkpoint.config_.model_type =
      std::string(model_type_of(checkpoint.config_.model_type, checkpoint.row_->dialect));
  checkpoint.evidence_ = std::move(found.evidence);
  checkpoint.layers_ = std::move(found.layers);
  checkpoint.others_ = std::move(found.others);
  return checkpoint;
}

SplitRule split_rule(const Checkpoint& checkpoint, const LayerTensors& layer) {
  const std::string& model = checkpoint.config().model_type;
  const bool gpt_oss =
      layer.shape.order == RowOrder::interleaved || model == "gpt_oss" || model == "gpt-oss";
  return gpt_oss ? SplitRule::ceil_blocks : SplitRule::equal;
}

}  // namespace fp4moe::checkpoint
