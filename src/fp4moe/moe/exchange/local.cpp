// No exchange: every rank computes with the tokens it has. What is left to do is quantizing, and
// weighing before or after the experts.
#include "fp4moe/moe/exchange/makers.hpp"
#include "fp4moe/moe/exchange/sums.hpp"
#include "fp4moe/moe/exchange/wire.hpp"

namespace fp4moe::moe::exchange {
namespace {

class Local final : public Exchange {
 public:
  Local(const ExchangeOptions& options, Owners owners)
      : owners_(std::move(owners)), threads_(options.pool) {}

  ExchangeTraits traits() const override { return {.name = "local"}; }

  Result<Prepared> prepare(const Tokens& tokens, const PrepareOptions& options) override {
    is_open_ = false;
    if (const auto fine = check_tokens(tokens, options, traits()); !fine) return fine.why();
    prepared_ = Prepared{tokens};
    RowCodec codec(tokens.x, options.quantizer);
    if (codec.is_quantized() || options.weight_on_input) {
      const std::uint64_t rows = tokens.x.rows;
      if (const auto done = reserve(x_, rows * codec.arrived_bytes()); !done) return done.why();
      const MutableRows x = codec.arrived(x_, rows);
      packed_.resize(codec.packed_bytes());
      for (std::uint64_t row = 0; row < rows; ++row) {
        codec.pack(tokens.x, row, options.weight_on_input ? &tokens.weights[row] : nullptr,
                   packed_.data());
        codec.unpack(packed_.data(), x, row);
      }
      prepared_.x = x;
      prepared_.is_quantized = codec.is_quantized();
      prepared_.factor = codec.factor();
    }
    if (options.weight_on_input) {
      ones_.assign(tokens.weights.size(), 1.0f);
      prepared_.weights = ones_;
    }
    is_open_ = true;
    return prepared_;
  }

  Result<Done> finalize(const ExpertsOutput& output, const MutableRows& out) override {
    if (!is_open_) return no_prepare(traits().name);
    if (output.form == OutputForm::batches)
      return wrong_form(traits().name, output.form, "summed rows or rows of assignments");
    if (output.form == OutputForm::assignments && prepared_.top_k == 0)
      return wrong_form(traits().name, output.form, "summed rows of a kernel that routes");
    const std::uint64_t rows = prepared_.x.rows;
    if (const auto fine = check_output(output, out, {rows, rows, prepared_.top_k}); !fine)
      return fine.why();
    is_open_ = false;
    if (output.form == OutputForm::assignments)
      return sum_assignments(
          {.rows = output.rows,
           .top_k = prepared_.top_k,
           .ids = prepared_.ids,
           .weights = output.is_weighted ? std::span<const float>{} : prepared_.weights,
           .owners = &owners_,
           .pool = threads_.get()},
          out);
    copy_rows(output.rows, out);
    return Done{};
  }

  void abandon(const Error&) override { is_open_ = false; }

 private:
  Owners owners_;
  Threads threads_;
  bool is_open_ = false;
  Prepared prepared_{};
  tensor::Buffer x_{};
  std::vector<float> ones_{};
  std::vector<std::byte> packed_{};
};

}  // namespace

std::unique_ptr<Exchange> make_local(const ExchangeOptions& options, Owners owners) {
  return std::make_unique<Local>(options, std::move(owners));
}

}  // namespace fp4moe::moe::exchange
