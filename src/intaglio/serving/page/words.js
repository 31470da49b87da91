// What the page says, in English and in Chinese; the browser's language chooses until the reader does.

const ENGLISH = {
  skip: "Skip to the message box",
  conversations: "Conversations",
  showConversations: "Show or hide the conversations",
  new: "New conversation",
  none: "None yet.",
  remove: "Delete “{title}”",
  removed: "Deleted “{title}”.",
  undo: "Undo",
  theme: "Light or dark",
  otherLanguage: "中文",
  model: "Model",
  save: "Save the conversation as a row of training data",
  settings: "Settings",
  close: "Close",
  transcript: "Conversation",
  bottom: "Go to the end",
  message: "Message",
  write: "Write a message",
  send: "Send",
  stop: "Stop",
  keys: "Enter sends, Shift+Enter breaks the line",
  room: "{used} of {all} tokens",

  you: "You",
  system: "System",
  welcome: "What shall we print?",
  welcomeHint: "Answers come from {model}, on this server. Conversations stay in this browser.",
  examples: "Name the capital of France.|Write a haiku about rain.|Explain attention in two sentences.",

  copy: "Copy",
  copied: "Copied",
  edit: "Edit",
  again: "Answer again",
  earlier: "Earlier version",
  later: "Later version",
  version: "{this} of {all}",
  resend: "Send",
  keep: "Keep",
  cancel: "Cancel",
  editing: "Edit the message",

  answering: "Answering",
  answered: "Answer complete, {tokens} tokens.",
  wait: "Waiting for the first token",
  figures: "{tokens} tokens, {speed} tokens/s, first after {first} s",
  prompt: "Prompt: {tokens} tokens, {cached} of them from the prefix cache",
  sources: "Sources",
  lines: "lines {first}–{last}",
  page: "page {page}",
  stopped: "Stopped.",
  length: "Cut at the length limit.",
  retry: "Try again",

  probability: "Probability",
  logProbability: "log p",
  tokensHelp: "Arrow keys walk through the tokens.",

  sampling: "Sampling",
  samplingHint: "An empty field leaves the model's own default.",
  system_prompt: "System prompt",
  temperature: "Temperature",
  temperatureHint: "0 always takes the likeliest token.",
  top_p: "Top-p",
  top_pHint: "Of the likeliest tokens, those that make up this share.",
  top_k: "Top-k",
  top_kHint: "Of the likeliest tokens, this many. 0: all.",
  min_p: "Min-p",
  min_pHint: "Tokens at least this likely, compared with the likeliest.",
  max_tokens: "Most tokens in an answer",
  max_tokensHint: "Up to the model's context when empty.",
  seed: "Seed",
  seedHint: "The same seed draws the same answer.",
  reset: "Back to the model's defaults",
  view: "View",
  logprobs: "Ask for log-probabilities",
  logprobsHint: "Point at a token to see how likely it was, and what else was.",
  shade: "Shade unlikely tokens",
  markdown: "Show formatting",
  default: "default",

  key: "API key",
  keyTitle: "This server asks for a key",
  keyWhy: "It was set when the server was started.",
  keyWrong: "The server refused this key.",
  keyKeep: "Keep it in this browser",
  keyUse: "Use this key",
  keyForget: "Forget the API key",

  errorKey: "The server asks for an API key.",
  errorReach: "The server does not answer. Is it running?",
  errorCut: "The connection ended before the answer did.",
  errorBusy: "The server is busy. Try again in {seconds} s.",
  errorReady: "The server is not ready: {message}",
  errorStatus: "The server answered with status {status}.",
  errorFull: "The browser's storage is full. Delete some conversations to keep this one.",
  errorField: "A value in the settings is out of range.",
};

const CHINESE = {
  skip: "跳到输入框",
  conversations: "对话",
  showConversations: "显示或隐藏对话列表",
  new: "新对话",
  none: "还没有对话。",
  remove: "删除“{title}”",
  removed: "已删除“{title}”。",
  undo: "撤销",
  theme: "浅色或深色",
  otherLanguage: "English",
  model: "模型",
  save: "将对话保存为一行训练数据",
  settings: "设置",
  close: "关闭",
  transcript: "对话内容",
  bottom: "到末尾",
  message: "消息",
  write: "输入消息",
  send: "发送",
  stop: "停止",
  keys: "Enter 发送，Shift+Enter 换行",
  room: "{used} / {all} 词元",

  you: "你",
  system: "系统",
  welcome: "今天印点什么？",
  welcomeHint: "回答由本服务器上的 {model} 生成，对话只保存在这个浏览器里。",
  examples: "法国的首都是哪里？|写一首关于雨的短诗。|用两句话解释注意力机制。",

  copy: "复制",
  copied: "已复制",
  edit: "编辑",
  again: "重新回答",
  earlier: "上一个版本",
  later: "下一个版本",
  version: "{this} / {all}",
  resend: "发送",
  keep: "保存",
  cancel: "取消",
  editing: "编辑消息",

  answering: "正在回答",
  answered: "回答完毕，共 {tokens} 个词元。",
  wait: "正在等待第一个词元",
  figures: "{tokens} 个词元，每秒 {speed} 个，首个用时 {first} 秒",
  prompt: "提示共 {tokens} 个词元，其中 {cached} 个来自前缀缓存",
  sources: "来源",
  lines: "第 {first}–{last} 行",
  page: "第 {page} 页",
  stopped: "已停止。",
  length: "达到长度上限，回答被截断。",
  retry: "重试",

  probability: "概率",
  logProbability: "对数概率",
  tokensHelp: "用方向键逐个查看词元。",

  sampling: "采样",
  samplingHint: "留空则使用模型自带的默认值。",
  system_prompt: "系统提示",
  temperature: "温度",
  temperatureHint: "0 表示总是取概率最大的词元。",
  top_p: "Top-p",
  top_pHint: "只取概率最大、合计达到此比例的词元。",
  top_k: "Top-k",
  top_kHint: "只取概率最大的若干个词元，0 表示全部。",
  min_p: "Min-p",
  min_pHint: "只取概率不低于最大概率此比例的词元。",
  max_tokens: "回答的最大词元数",
  max_tokensHint: "留空则以模型的上下文长度为限。",
  seed: "随机种子",
  seedHint: "种子相同，回答相同。",
  reset: "恢复模型默认值",
  view: "显示",
  logprobs: "请求对数概率",
  logprobsHint: "指向一个词元，即可看到它的概率和其他候选。",
  shade: "给低概率词元加底色",
  markdown: "显示格式",
  default: "默认",

  key: "API 密钥",
  keyTitle: "此服务器需要密钥",
  keyWhy: "密钥在启动服务器时设定。",
  keyWrong: "服务器拒绝了这个密钥。",
  keyKeep: "保存在这个浏览器里",
  keyUse: "使用此密钥",
  keyForget: "忘记 API 密钥",

  errorKey: "服务器需要 API 密钥。",
  errorReach: "服务器没有响应。它在运行吗？",
  errorCut: "回答还没结束，连接就断开了。",
  errorBusy: "服务器繁忙，请在 {seconds} 秒后重试。",
  errorReady: "服务器尚未就绪：{message}",
  errorStatus: "服务器返回状态码 {status}。",
  errorFull: "浏览器存储空间已满，请删除一些对话。",
  errorField: "设置中有数值超出范围。",
};

const LANGUAGES = { en: ENGLISH, zh: CHINESE };
const KEY = "intaglio.language";

/** `en` or `zh`: the reader's choice, or the first of the browser's languages that we speak. */
export function language() {
  const wanted = [localStorage.getItem(KEY), ...navigator.languages].map((name) => name?.slice(0, 2).toLowerCase());
  return wanted.find((name) => name in LANGUAGES) ?? "en";
}

export function switchLanguage() {
  localStorage.setItem(KEY, language() === "en" ? "zh" : "en");
}

/** The words for `key`, with `{name}` replaced by `values.name`. */
export function say(key, values = {}) {
  return LANGUAGES[language()][key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

export function number(value, digits = 0) {
  return value.toLocaleString(language(), { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** What a model is called here: a directory by its last name. */
export const modelName = (id) => id.replace(/\/+$/, "").split("/").pop();

/** Writes the words into every element that names some. */
export function translate(root) {
  for (const element of root.querySelectorAll("[data-t]")) element.textContent = say(element.dataset.t);
  for (const element of root.querySelectorAll("[data-placeholder]")) element.placeholder = say(element.dataset.placeholder);
  for (const element of root.querySelectorAll("[data-label]")) label(element, say(element.dataset.label));
}

/** Names an element that shows no words; readers of the screen hear it, others see it on hover. */
export function label(element, words) {
  element.setAttribute("aria-label", words);
  if (element.tagName === "BUTTON") element.title = words;
}
