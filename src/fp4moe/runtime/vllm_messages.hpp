// vLLM's sentences about MoE backends as users find them in a log: what each means and what to do.
// The page docs/vllm-messages.md is made from this table; a log is read with it.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fp4moe::runtime {

enum class MessageLevel : std::uint8_t { error, warning, info, reason };

struct MessageRow {
  std::string_view id;  // of its section; rows of one id are spellings of one message
  MessageLevel level;
  std::string_view form;   // {name} stands for what differs
  std::string_view means;  // of the first row of an id
  std::string_view todo;
};

std::span<const MessageRow> messages();

struct FoundMessage {
  const MessageRow* row = nullptr;
  const MessageRow* about = nullptr;  // the first row of its id, which says what it means
  std::vector<std::pair<std::string_view, std::string>> values{};  // of the form's names
  std::string value(std::string_view name) const;                  // empty: there is none
};

// The first row whose form is part of the line; nothing where it holds no message.
std::optional<FoundMessage> find_message(std::string_view line);
// The same among the reasons that follow "since".
std::optional<FoundMessage> find_reason(std::string_view reason);

// All of it as Markdown.
std::string message_page();

}  // namespace fp4moe::runtime
