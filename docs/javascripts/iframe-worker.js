// Pages that are opened from disk may start no worker, and the search is one: run it in a hidden frame instead.
// What Material for MkDocs would otherwise load from another server.
class FrameWorker extends EventTarget {
  constructor(url) {
    super()
    this.frame = document.createElement("iframe")
    this.frame.hidden = true
    document.body.appendChild(this.frame)
    this.inside = this.frame.contentWindow
    this.ready = new Promise((resolve) => this.frame.addEventListener("load", resolve, { once: true }))
    this.listen = (event) => {
      if (event.source !== this.inside) return
      const told = new MessageEvent("message", { data: event.data })
      this.dispatchEvent(told)
      if (this.onmessage) this.onmessage(told)
    }
    window.addEventListener("message", this.listen)
    const page = this.inside.document
    page.open()
    page.write(
      "<!doctype html><html><body><script>" +
        "postMessage = (data) => parent.dispatchEvent(new MessageEvent('message', { data, source: window }));" +
        "importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {" +
        "const one = document.createElement('script'); one.src = url; one.onload = done; one.onerror = failed;" +
        "document.body.appendChild(one) })), Promise.resolve())" +
        `</script><script src="${new URL(url, location.href)}"></script></body></html>`,
    )
    page.close()
  }

  postMessage(data) {
    this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
  }

  terminate() {
    window.removeEventListener("message", this.listen)
    this.frame.remove()
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker
