"use strict";
// Browsers start no Worker on a page that was opened as a file. The search of the site asks for one: there its script runs in a
// hidden frame of the same page, with the same messages.
if (location.protocol === "file:") {
  globalThis.Worker = class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.loaded = new Promise((resolve) => {
        this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
        const script = frame.contentDocument.createElement("script");
        script.onload = resolve;
        script.src = new URL(url, location.href);
        frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", {data})));
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
